// Requests by drafters, step by step: what a selector believed, what it chose, what that earned.
css(`
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
.grid { width: 100%; table-layout: fixed; }
th { font-weight: 600; text-align: left; padding: 3px 6px; vertical-align: bottom; } .grid th { font-size: 12px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
td { padding: 3px 6px; border: 1px solid var(--line); vertical-align: top; height: 37px; position: relative; }
td small { display: block; white-space: nowrap; }
td.none { color: var(--soft); }
td.closed { background: repeating-linear-gradient(45deg, transparent 0 6px, var(--quiet) 6px 12px); }
td.chosen { outline: 3px solid var(--colour); outline-offset: -2px; background: color-mix(in srgb, var(--colour) 22%, transparent); }
td.star::after { content: "★"; position: absolute; right: 4px; top: 0; color: var(--orange); font-size: 16px;
  text-shadow: 0 0 1px var(--ink); }
.earned { border-left-width: 3px; } .bad { color: var(--red); font-weight: 600; } .bad small { font-weight: 400; }
.epochs { display: flex; height: 22px; border-radius: 4px; overflow: hidden; background: var(--quiet); cursor: pointer; }
.epochs div { border-right: 1px solid var(--ground); min-width: 1px; }
.explore { background: var(--orange); } .exploit { background: var(--sky); } .plain { background: var(--line); }
.now { box-shadow: inset 0 0 0 3px var(--ink); }
.below { display: flex; gap: 26px; flex-wrap: wrap; align-items: flex-start; margin-top: 10px; }
.compare td, .compare th { height: auto; padding: 2px 10px; text-align: right; } .compare td:first-child, .compare th:first-child { text-align: left; }
.compare tr.shown { background: var(--quiet); font-weight: 600; }
svg text { fill: var(--ink); font-size: 12px; }
`);
const COLOURS = ["#009E73", "#D55E00", "#0072B2", "#E69F00", "#56B4E9", "#8C6BB1", "#66A61E"];
const colour = arm => ({none: "#999", ngram: "#CC79A7"})[data.arms[arm]] ?? COLOURS[arm % COLOURS.length];
const number = value => value == null ? "–" : value >= 100 ? value.toFixed(0) : value.toPrecision(3);
for (const one of Object.values(data.policies)) for (const frame of one.frames)      // rows come as lists of fields
  frame.rows = frame.rows.map(row => Object.fromEntries(data.fields.map((field, i) => [field, row[i]])));
const names = Object.keys(data.policies);
let policy = names[0], at = data.at, timer = null;
const frames = () => data.policies[policy].frames;

const title = make("h3"), sentence = make("p", {id: "sentence"}), where = make("span", {id: "where"});
const slider = make("input", {type: "range", min: 0, "aria-label": "step", title: "step (arrow keys)", oninput: () => go(+slider.value)});
const play = make("button", {title: "play or pause (space)", onclick: () => run(!timer)}, "▶ play");
const epochs = make("div", {class: "epochs", title: "the steps: orange explores, blue exploits; click to go there",
  onclick: event => go(Math.floor(frames().length * (event.clientX - epochs.getBoundingClientRect().left) / epochs.clientWidth))});
const grid = make("table", {class: "grid"}), compare = make("table", {class: "compare"});
const svg = (tag, attributes, ...children) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const matching = svg("svg", {width: 430, role: "img", "aria-label": "the drafter of each request"});

const jumps = {
  "first exploit": frame => frame.phase === "exploit",
  "first switch": frame => frame.rows.some(row => row.current >= 0 && row.current !== row.chosen),
  "a mistake": frame => frame.rows.some(mistake),
};
function mistake(row) { return row.star != null && row.why !== "explores" && row.would[row.star] > row.earned; }
function jump(name) {                // to the first of its kind, to the next mistake
  const steps = frames(), test = jumps[name], from = name === "a mistake" ? at + 1 : 0;
  const order = [...steps.keys()].map(i => (from + i) % steps.length);
  const next = order.find(i => test(steps[i]));
  return next === undefined ? sentence.append(" There is none.") : go(next);
}
body.append(title, make("p", {class: "soft"}, data.about),
  make("div", {class: "controls"}, make("label", {}, "policy ", choice("the policy that chooses", names.map(n => [n, n]), policy, name => { policy = name; go(Math.min(at, frames().length - 1)); })),
    make("button", {title: "one step back (←)", id: "back", onclick: () => go(at - 1)}, "◀ back"),
    make("button", {title: "one step on (→)", id: "next", onclick: () => go(at + 1)}, "next ▶"), play,
    ...Object.keys(jumps).map(name => make("button", {title: name === "a mistake" ? "to the next step in which another choice would have brought more" : "to the first such step", onclick: () => jump(name), "data-jump": name}, name)),
    slider, where), epochs, sentence, grid,
  make("div", {class: "below"}, make("div", {}, make("b", {}, "The matching"), make("br"), matching),
    make("div", {}, make("b", {}, "All policies after as many steps"), compare)),
  make("p", {class: "soft"}, data.legend), ...data.tasks.map(text => make("p", {class: "task"}, text)));

function go(step) {
  at = Math.max(0, Math.min(frames().length - 1, step));
  draw();
}
function run(on) {
  clearInterval(timer);
  timer = on ? setInterval(() => at + 1 < frames().length ? go(at + 1) : run(false), 900) : null;
  play.textContent = on ? "pause" : "▶ play";
}
function draw() {
  const steps = frames(), frame = steps[at], arms = data.arms;
  title.textContent = data.policies[policy].title;
  slider.max = steps.length - 1; slider.value = at;
  root.querySelector("#back").disabled = at === 0; root.querySelector("#next").disabled = at === steps.length - 1;
  where.textContent = `step ${at + 1} of ${steps.length}`;
  epochs.replaceChildren(...steps.map((one, i) => make("div", {class: (one.phase ?? "plain") + (i === at ? " now" : ""), style: `flex: 1`})));
  const lost = frame.rows.filter(mistake).length, switched = frame.rows.filter(r => r.current >= 0 && r.current !== r.chosen).length;
  sentence.textContent = (frame.slot ? `Epoch ${frame.slot[0] + 1}, slot ${frame.slot[1] + 1} of ${frame.slot[2] + frame.slot[3]} (${frame.slot[2]} explore, ${frame.slot[3]} exploit): this step ${frame.phase}s. ` : "This policy has no epochs. ")
    + `${frame.rows.reduce((sum, row) => sum + row.earned, 0)} tokens for ${frame.rows.length} requests in ${number(1000 * frame.rows.reduce((sum, row) => sum + row.seconds, 0))} ms. `
    + (switched ? `${switched} requests switch their drafter. ` : "") + (lost ? `For ${lost} another choice would have brought more.` : "");
  const used = arms.map((_, arm) => frame.rows.filter(row => row.chosen === arm).length);
  const head = make("tr", {}, make("th", {style: "width: 96px"}, "request"), ...arms.map((arm, i) => make("th", {}, make("span", {style: `color: ${colour(i)}`}, "● "), arm,
    make("br"), make("small", {}, frame.places[i] >= frame.rows.length ? `serves ${used[i]}` : `${used[i]} of ${frame.places[i]} places`))), make("th", {style: "width: 150px"}, "the step earned"));
  grid.replaceChildren(head, ...frame.rows.map(row => {
    const cells = arms.map((_, arm) => {
      const flags = row.flags[arm], ready = flags & 1, found = flags & 2, room = frame.places[arm] > 0;
      const kinds = [arm === row.chosen && "chosen", arm === row.star && "star", !(found && room) && "closed", row.estimate[arm] == null && "none"].filter(Boolean);
      const state = !room ? "no places" : !found ? "found nothing" : !ready ? "must read first" : row.count[arm] ? `tried ${row.count[arm]} ×` : "not tried";
      const would = row.would && arms[arm] !== "none" ? ` · would bring ${row.would[arm]}` : "";
      return make("td", {class: kinds.join(" "), style: `--colour: ${colour(arm)}`, "data-arm": arms[arm], title: `${arms[arm]}: ${data.unit[policy]} ${number(row.estimate[arm])}; ${state}${would}`},
        number(row.estimate[arm]), make("small", {}, state), make("small", {}, row.would ? (arms[arm] === "none" ? "brings 1" : `brings ${row.would[arm]}`) : ""));
    });
    return make("tr", {"data-request": row.id}, make("td", {}, make("b", {}, `#${row.id}`), make("small", {}, row.text)), ...cells,
      make("td", {class: "earned" + (mistake(row) ? " bad" : "")}, `${row.earned} token${row.earned === 1 ? "" : "s"}`, make("small", {}, `${row.accepted} of ${row.drafted} drafted, ${(1000 * row.seconds).toFixed(1)} ms`), make("small", {}, row.why)));
  }));
  const height = 24 * Math.max(frame.rows.length, arms.length) + 8, y = (i, count) => 14 + i * (height - 24) / Math.max(1, count - 1);
  matching.setAttribute("height", height);
  matching.replaceChildren(...frame.rows.map((row, i) => svg("path", {d: `M 70 ${y(i, frame.rows.length)} C 180 ${y(i, frame.rows.length)}, 180 ${y(row.chosen, arms.length)}, 290 ${y(row.chosen, arms.length)}`,
      stroke: colour(row.chosen), fill: "none", "stroke-width": 1.5 + row.earned, opacity: .8})),
    ...frame.rows.map((row, i) => svg("text", {x: 62, y: y(i, frame.rows.length) + 4, "text-anchor": "end"}, `#${row.id}`)),
    ...arms.map((arm, i) => svg("text", {x: 298, y: y(i, arms.length) + 4, style: used[i] ? "" : "opacity: .4"}, `${arm}`)));
  compare.replaceChildren(make("tr", {}, ...["policy", "tokens", "seconds", "tokens/s"].map(text => make("th", {}, text))),
    ...names.map(name => {
      const one = data.policies[name].frames[Math.min(at, data.policies[name].frames.length - 1)];
      return make("tr", {class: name === policy ? "shown" : "", "data-policy": name}, make("td", {}, name), make("td", {}, String(one.tokens)),
        make("td", {}, one.clock.toFixed(2)), make("td", {}, (one.tokens / one.clock).toFixed(1)));
    }));
}
body.addEventListener("keydown", event => {
  if (event.target !== body) return;
  const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: 1e9}[event.key];
  if (event.key === " ") run(!timer); else if (to !== undefined) go(to); else return;
  event.preventDefault(); event.stopPropagation();
});
draw();
