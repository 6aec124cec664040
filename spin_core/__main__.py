"""The command line: ``python -m spin_core generate | fetch | distill | bench | reproduce | grade``."""

import argparse
import os
import signal
import sys
from collections import Counter
from contextlib import suppress
from importlib import import_module

from spin_core.files import check_writable, save_json


LAB = {     # commands of the laboratory: a module with `add_arguments(parser)` and `run(args)`, and a line of help
    "distill": ("spin_core.lab.distill", "make a drafter from the target"),
    "bench": ("spin_core.lab.bench.command", "run a benchmark"),
    "reproduce": ("spin_core.lab.reproduce.command", "run the notebooks and collect their figures"),
    "grade": ("spin_core.lab.lessons.grade", "a student's score in the lessons' exercises")}


class _Command(argparse.ArgumentParser):
    """A command whose ``module`` adds its arguments when it is used: importing all of them takes seconds."""

    module: str | None = None

    def parse_known_args(self, args=None, namespace=None):
        if self.module is not None:
            module, self.module = self.module, None
            import_module(module).add_arguments(self)
        return super().parse_known_args(args, namespace)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m spin_core", description="Speculative decoding, SPIN's way.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Command)
    _generate_arguments(commands.add_parser("generate", help="generate text and see what speculation did"))
    commands.add_parser("fetch", help="fetch and check the embedded models")
    for name, (module, line) in LAB.items():
        commands.add_parser(name, help=line).module = module
    try:
        args = parser.parse_args(argv)
        if getattr(args, "json", None) is not None:
            check_writable(args.json)
        if args.command in LAB:
            return import_module(LAB[args.command][0]).run(args)
        return {"generate": _generate, "fetch": _fetch}[args.command](args)
    except SystemExit:          # of argparse; asking below whether it is a refusal would import the models' library
        raise
    except _refusals() as error:
        print(f"error: {error}", file=sys.stderr)       # nothing is wrong with the program: no traceback
        return 2
    except KeyboardInterrupt as stop:
        print("; ".join(["interrupted", *map(str, stop.args)]), file=sys.stderr)
        return 130


def _refusals() -> tuple[type[Exception], ...]:
    """What is raised where something cannot be done as asked."""
    from spin_core.zoo import CorruptFileError, FetchError

    return ValueError, OSError, NotImplementedError, FetchError, CorruptFileError


def _generate_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", action="append", help="a user message; may be given several times")
    source.add_argument("--workload", metavar="NAME|FILE", help="a named workload or a JSONL file of prompts")
    parser.add_argument("--limit", type=int, help="at most this many prompts of the workload")
    parser.add_argument("--drafter", help="one drafter for all, or none; an unknown name lists the known ones")
    parser.add_argument("--selector", metavar="POLICY",
                        help="the policy that chooses each request's drafter in every step (default spin)")
    parser.add_argument("--arm", action="append", metavar="NAME",
                        help="a drafter that it may choose; repeated (default: the family's, and ngram)")
    parser.add_argument("--gamma", type=int, help="drafted tokens per step (default: 4; of chosen models 2)")
    parser.add_argument("--verification", default="auto",
                        help="padded, grouped, decomposed, per-request, flex, auto (default)")
    parser.add_argument("--pipeline", type=_count,
                        help="micro-batches: a number, off, or auto (default; with --drafter off); async: steps "
                             "without a host read")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--min-p", type=float, default=0.0)
    parser.add_argument("--seed", type=int, help="of every request (default: 0, 1, ... request by request)")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--stop", action="append", default=[], help="a string that ends the text; may be repeated")
    parser.add_argument("--batch", type=int, default=8, help="requests served at once (default 8)")
    parser.add_argument("--max-len", type=int, help="most tokens of a prompt and its answer together (default 2048, or "
                                                    "what the models can)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--target", help="a Hugging Face folder or hub name instead of the embedded target")
    parser.add_argument("--draft-model", action="append", help="drafters for --target, likewise")
    parser.add_argument("--parts", type=int, help="under torchrun: the target's ranks; the others draft (default all; "
                                                  "without --target 1)")
    parser.add_argument("--json", metavar="OUT", help="write texts, events and metrics here")


def _generate(args) -> int:
    from spin_core import distributed, zoo
    from spin_core.engine import Engine
    from spin_core.lab.provenance import here       # before the work: it notes the commit that runs
    from spin_core.request import FinishReason, SamplingParams
    from spin_core.runtime.ranks import RankLost, processes
    from spin_core.workloads import NAMES, load_workload

    if args.draft_model and not args.target:
        raise ValueError("--draft-model needs --target: the embedded target comes with drafters of its own")
    if args.limit is not None and not args.workload:
        raise ValueError("--limit needs --workload")
    params = SamplingParams(args.temperature, args.top_k, args.top_p, args.min_p, args.max_new_tokens, None,
                            tuple(args.stop), args.seed)
    prompts = args.prompt
    if args.workload:
        split = "test" if args.workload in NAMES else None
        prompts = [p.messages for p in load_workload(args.workload, split, args.limit)]
    if args.parts is not None and args.parts < 1:
        raise ValueError(f"--parts {args.parts}: the target needs one rank at least")
    if args.parts and not args.target:
        raise ValueError("--parts is for a --target: the embedded one fits any device, and its drafters need it whole")
    family = distributed.join(
        zoo.load(target=args.target, drafters=args.draft_model or [], device=args.device,
                 parts=args.parts or processes()) if args.target else zoo.load("smollm2", device=args.device))
    engine = Engine(family, args.drafter, args.gamma, max_batch=args.batch, max_len=args.max_len,
                    selector=args.selector, arms=args.arm, verification=args.verification, pipeline=args.pipeline)
    requests = [engine.submit(prompt, params) for prompt in prompts]
    try:
        while not all(r.finished for r in requests):
            with suppress(RankLost):            # the requests that this ended say so
                engine.step()
    except KeyboardInterrupt as stop:           # what has finished is kept
        with suppress(RankLost):
            engine.cancel_all()
        _report(args, engine, requests, here)
        lost = family.ranks.lost if processes() > 1 else {}
        raise KeyboardInterrupt(*stop.args, *(f"rank {rank} {why}" for rank, why in lost.items())) from stop
    _report(args, engine, requests, here)
    return 1 if any(r.finish_reason is FinishReason.ERROR for r in requests) else 0


def _report(args, engine, requests, here) -> None:
    """Print the texts and what speculation did, and write them down if asked."""
    from spin_core.runtime.ranks import processes

    if processes() > 1:         # torchrun ends all processes once one has died: not before this is written
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    metrics = engine.trace.metrics()
    if args.json:
        save_json(args.json, {
            **here(), "arguments": {k: v for k, v in vars(args).items() if k != "command"},
            "requests": [{"id": r.id, "prompt_ids": r.prompt_ids, "output_ids": r.output_ids, "text": r.text,
                          "finish_reason": r.finish_reason.value, "error": r.error} for r in requests],
            "metrics": metrics, "events": engine.trace.to_pandas().astype(object).to_dict("records")})
    for request in requests:
        if len(requests) > 1:
            print(f"--- request {request.id}: {len(request.output_ids)} tokens, {request.finish_reason.value}")
        if request.error is None:
            print(_marked(engine, request))
        else:
            print(f"error: request {request.id}: {request.error}", file=sys.stderr)
    print(f"\n{metrics['emitted']} tokens, {metrics['goodput']:.1f} tokens/s, "
          f"{metrics['tokens_per_verification'] or 0:.2f} tokens per verification; "
          f"{f'drafter {engine.drafter}' if engine.drafter else _served(engine)}: "
          f"{metrics['accepted']} of {metrics['drafted']} drafted tokens accepted"
          + (f" ({metrics['acceptance_rate']:.0%})" if metrics["drafted"] else ""))


def _count(text: str) -> int | str:
    """A number where it is one."""
    return int(text) if text.isdigit() else text


def _served(engine) -> str:
    """Each drafter's share of the verifications."""
    steps = Counter(e.drafter for e in engine.trace.events if e.kind == "step" and e.emitted)
    return "drafters " + (", ".join(f"{name} {count / steps.total():.0%}" for name, count in steps.most_common()) or
                          "none yet")


def _marked(engine, request) -> str:
    """The text with drafted-and-accepted tokens marked: underlined green on a terminal, in [ ] elsewhere."""
    on, off = ("\033[4;32m", "\033[0m") if sys.stdout.isatty() else ("[", "]")
    fates: list[bool] = []
    for event in engine.trace.events:
        if event.kind == "step" and event.request == request.id:
            fates += [i < event.accepted for i in range(len(event.emitted))]
    out, start, shown = "", 0, 0
    while start < len(fates):
        end = start
        while end < len(fates) and fates[end] == fates[start]:
            end += 1
        # A character may be spread over several tokens, and a stop string cuts the text inside one: show what the
        # tokens so far have settled of the text. A character goes with the token that completes it.
        settled = os.path.commonprefix([engine.family.decode(request.output_ids[:end]), request.text])
        piece = request.text[shown:] if end == len(fates) else settled[shown:]
        out += f"{on}{piece}{off}" if fates[start] and piece else piece
        start, shown = end, max(shown, len(settled))
    return out


def _fetch(args) -> int:
    from spin_core import zoo

    for file in zoo.fetch():
        print(f"{'made' if file.made else 'kept'}  {file.size / 1e6:8.1f} MB  sha256 {file.sha256[:16]}  {file.path}")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)       # a polite kill ends kernels and workers, too
    sys.exit(main())
