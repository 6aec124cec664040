// Lanes write the same answer on one clock. A step shows its draft, then what the target made of it, then the text.
css(`
.lane { margin: 8px 0 12px; }
.head { display: flex; gap: 12px; align-items: baseline; flex-wrap: wrap; }
.head b { min-width: 9.5em; } .head .numbers { font-variant-numeric: tabular-nums; }
.text { min-height: 5.2em; padding: 6px 8px; border: 1px solid var(--line); border-radius: 6px; font-size: 13px;
  line-height: 1.6; white-space: pre-wrap; }
.text span { border-radius: 3px; padding: 1px 0; }
.accepted { background: color-mix(in srgb, var(--green) 30%, transparent); }
.own { background: color-mix(in srgb, var(--sky) 38%, transparent); font-weight: 600; }
.drafted { background: color-mix(in srgb, var(--orange) 45%, transparent); }
.rejected { background: color-mix(in srgb, var(--red) 32%, transparent); text-decoration: line-through; }
.bar { height: 5px; background: var(--quiet); border-radius: 3px; margin-top: 3px; }
.bar div { height: 100%; background: var(--blue); border-radius: 3px; }
.legend span { padding: 1px 6px; border-radius: 3px; margin-right: 8px; font-size: 12.5px; }
`);
const SHOW_REJECTED = 0.3;          // share of the next step in which rejected tokens stay to be seen
const lanes = data.lanes.map(lane => {
  let clock = 0, tokens = 0;
  const steps = lane.steps.map(step => {
    const start = clock; clock += step.seconds; tokens += step.emitted.length;
    return {...step, start, end: clock, tokens};
  });
  return {...lane, steps, end: clock, tokens};
});
const end = Math.max(...lanes.map(lane => lane.end));
let now = 0, speed = 1, playing = false, last = 0;

const play = make("button", {title: "play or pause (space)", onclick: () => run(!playing)}, "▶ play");
const clock = make("input", {type: "range", min: 0, max: 1000, value: 0, "aria-label": "time", title: "drag the clock (arrow keys: 2 %)",
  oninput: () => { now = end * clock.value / 1000; draw(); }});
const time = make("span", {class: "mono", id: "time"});
body.append(make("h3", {}, data.title), make("p", {id: "prompt"}, make("b", {}, "Prompt: "), data.prompt), make("p", {}, data.why), make("p", {class: "soft"}, data.about),
  make("p", {class: "task"}, data.task),
  make("div", {class: "controls"}, play,
    make("button", {title: "to the start (Home)", onclick: () => { now = 0; draw(); }}, "restart"),
    choice("speed", [[0.25, "¼ speed"], [0.5, "½ speed"], [1, "as recorded"], [2, "2 × speed"], [4, "4 × speed"]], 1, v => { speed = +v; }),
    clock, time));
for (const lane of lanes) {
  lane.numbers = make("span", {class: "numbers"});
  lane.text = make("div", {class: "text mono"});
  lane.done = make("div");
  body.append(make("div", {class: "lane", "data-lane": lane.name}, make("div", {class: "head"}, make("b", {}, lane.name),
    make("span", {class: "soft"}, lane.about), lane.numbers), lane.text, make("div", {class: "bar"}, lane.done)));
}
body.append(make("div", {class: "legend"}, make("span", {class: "drafted"}, "drafted, being verified"),
  make("span", {class: "accepted"}, "drafted, accepted"), make("span", {class: "rejected"}, "rejected"),
  make("span", {class: "own"}, "the target's own")));
body.append(make("details", {}, make("summary", {}, "Answer"), data.answer));

function draw() {
  for (const lane of lanes) {
    lane.text.replaceChildren();
    const span = (text, kind) => lane.text.append(make("span", {class: kind}, text));
    const done = lane.steps.filter(step => step.end <= now);
    for (const step of done) step.emitted.forEach((text, i) => span(text, i < step.accepted ? "accepted" : "own"));
    const step = lane.steps[done.length], before = done.at(-1);
    if (step && now > 0) {
      const gone = (now - step.start) / step.seconds;
      const refused = before?.drafted.slice(before.accepted) ?? [];
      if (gone < SHOW_REJECTED && refused.length && before.emitted.length > before.accepted)
        span(refused.join(""), "rejected");
      else {
        const drafting = step.draft_seconds / step.seconds || 0;
        const seen = drafting ? Math.ceil(step.drafted.length * Math.min(1, gone / drafting)) : step.drafted.length;
        span(step.drafted.slice(0, seen).join(""), "drafted");
      }
    }
    const tokens = before?.tokens ?? 0, finished = done.length === lane.steps.length;
    lane.numbers.textContent = `${tokens} tokens, ${done.length} target passes` + (finished ? `, done after ${lane.end.toFixed(2)} s` : "");
    lane.done.style.width = `${100 * tokens / lane.tokens}%`;
  }
  clock.value = 1000 * now / end;
  time.textContent = `${now.toFixed(2)} s of ${end.toFixed(2)} s`;
}
function run(on) {
  if (on && now >= end) now = 0;
  playing = on; play.textContent = on ? "pause" : "▶ play"; last = performance.now();
  if (on) requestAnimationFrame(tick);
}
function tick(at) {
  if (!playing) return;
  now = Math.min(end, now + speed * Math.max(0, at - last) / 1000); last = at; draw();
  if (now >= end) run(false); else requestAnimationFrame(tick);
}
body.addEventListener("keydown", event => {
  const move = {ArrowRight: .02, ArrowLeft: -.02}[event.key];
  if (event.target !== body) return;
  if (event.key === " ") run(!playing);
  else if (event.key === "Home") { now = 0; draw(); }
  else if (move) { now = Math.min(end, Math.max(0, now + move * end)); draw(); }
  else return;
  event.preventDefault(); event.stopPropagation();
});
draw();
