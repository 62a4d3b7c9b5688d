"""Measure your own program, as it is.

Write the command as you would without steelyard, after `--`. It runs unchanged: its input, its output, its terminal
and its exit code are its own. What steelyard has to say follows on standard error when the program has ended. Processes
that the command leaves running are ended after 5 s.

$ steelyard wrap -- torchrun --nproc-per-node 2 train.py --batch 64
$ steelyard wrap --repeats 3 --max-steps 500 -- python train.py
"""

from steelyard.cli.arguments import add_common, add_setting, add_switch, whole, within
from steelyard.cli.options.run import MOST_REPEATS
from steelyard.cli.parser import Parser
from steelyard.contracts.spec import RunSpec
from steelyard.contracts.wrap import Program


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument("command", metavar="COMMAND", nargs="+", help="the command and its arguments, after `--`")
    limits = parser.add_argument_group("when to stop")
    add_setting(limits, Program, "max_steps", "end the program after this many steps", default="it runs to its end")
    add_setting(
        limits,
        Program,
        "max_seconds",
        "end the program this many seconds after its first step",
        default="it runs to its end",
    )
    add_setting(
        limits,
        RunSpec,
        "time_limit_s",
        "end the program after this many seconds of wall time; exit code 124",
        names=("--time-limit",),
    )
    steps = parser.add_argument_group("what cannot be seen otherwise")
    add_switch(
        steps,
        "second_pass",
        "launch the program once more, for 8 steps, to count its operations and to watch its communication",
    )
    add_setting(steps, Program, "samples_per_step", "samples per optimizer step of the whole job")
    add_setting(
        steps, Program, "figures", "format of the figures that the program prints, such as nanogpt (default: all known)"
    )
    repeats = parser.add_argument_group("repeats")
    repeats.add_argument(
        "--repeats",
        type=within(whole, ge=1, le=MOST_REPEATS),
        default=1,
        metavar="N",
        help="fresh launches; three or more give an interval (default 1)",
    )
    add_setting(repeats, RunSpec, "study", "study name to keep the runs under")
    parser.set_defaults(study=RunSpec.study)
    add_common(parser)
