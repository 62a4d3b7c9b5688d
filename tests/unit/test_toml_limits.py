"""A TOML file cannot take much time or memory, however its keys are written, and what people write is read."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from steelyard.inputs.validate import parse_toml

# Each key has tens of thousands of parts: tomllib needs gigabytes for it.
MANY = 50_000
KEYS = {
    "plain": MANY * "x." + "y",
    "spaces before dots": MANY // 3 * "x         ." + "y",
    "spaces after dots": MANY // 3 * "x.         " + "y",
    "tabs": MANY // 3 * "x\t\t\t\t\t\t\t\t\t.\t" + "y",
    "quoted": MANY * '"x".' + "y",
    "quoted with a dot and a bracket": MANY // 2 * '"]=.," . ' + "y",
    "quoted with quotes": MANY // 2 * r'"\"" . ' + "y",
    "literal": MANY * "'x'." + "y",
    "literal with a quote": MANY * "'\"'." + "y",
    "empty": MANY * '"".' + "y",
    "long": MANY // 20 * (100 * "x" + ".") + "y",
}
FORMS = {
    "key": "KEY = 1\n",
    "table": "[KEY]\n",
    "array of tables": "[[ KEY ]]\n",
    "inline table": "a = {b = 1.5, KEY = 1}\n",
    "table in an array": "a = [\n1.5, # ]\n{KEY = 1}]\n",
    "after a comment": '# """ \' "\nKEY = 1\n',
    "after an empty comment": "#\nKEY = 1\n",
    "after a long text": 'a = """x\n\\""""""\nKEY = 1\n',
    "after a long literal text": "a = '''\\'''''\nKEY = 1\n",
    "after quotes in texts": "a = \"it's\"\r\nb = '\"'\r\nKEY = 1\n",
}
DEEP = {
    "arrays": "a = " + 100_000 * "[",
    "inline tables": "a = " + 60_000 * "{a = ",
    "both": "a = " + 50_000 * "[{a = ",
}
WIDE = {
    "keys": "".join(f"k{number}{31 * '.b'} = 1\n" for number in range(13_000)),
    "tables": "".join(f"[k{number}{31 * '.b'}]\n" for number in range(13_000)),
    "short tables": "".join(f"[k{number}.b]\n" for number in range(90_000)),
}
FILES = [
    *(form.replace("KEY", key) for form in FORMS.values() for key in KEYS.values()),
    *DEEP.values(),
    *WIDE.values(),
]
MORE_BYTES = 100_000_000
SECONDS = 60
"""Of the processor, for all files together; without the limits one of them takes minutes."""
assert all(tomllib.loads(form.replace("KEY", "k")) for form in FORMS.values())
READ = """
import json, resource, sys
from pathlib import Path
from steelyard.errors import InputError
from steelyard.inputs.validate import parse_toml
files = json.load(sys.stdin)
own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (own + int(sys.argv[1]),) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[2]),) * 2)
for text in files:
    try:
        parse_toml(text.encode(), "file")
        print("read")
    except InputError as error:
        print(str(error))
"""


def test_no_file_takes_much_time_or_memory() -> None:
    command = [sys.executable, "-c", READ, str(MORE_BYTES), str(SECONDS)]
    done = subprocess.run(command, input=json.dumps(FILES), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    said = done.stdout.splitlines()
    keys = len(FORMS) * len(KEYS)
    assert len(said) == len(FILES)
    assert all("a key has more than 32 parts" in line for line in said[:keys])
    assert all("nested more than 64 deep" in line for line in said[keys : keys + len(DEEP)])
    assert all("more than 20,000 tables and parts of keys" in line for line in said[keys + len(DEEP) :])


@pytest.mark.parametrize(
    "text",
    [
        "a = [" + 5000 * "1.5, " + "]\n",
        "a = [\n" + 5000 * "  1.5e-3,\n" + "]\n",
        'a = """' + 1000 * "x." + '"""\n',
        'a = "' + 1000 * "x. " + '"\n',
        "a = '" + 1000 * "x." + "' # " + 1000 * "x." + "\n",
        "\n".join(f"a{number}.b.c = 07:32:00.999" for number in range(1000)),
        "a" + 31 * ".b" + " = 1\n",
        "a = " + 60 * "[" + 60 * "]",
    ],
)
def test_what_people_write_is_read(text: str) -> None:
    assert parse_toml(text.encode(), "file") == tomllib.loads(text)


def test_own_files_are_far_below_the_limits() -> None:
    root = Path(__file__).resolve().parents[2]
    files = [path for folder in ("src", "docs", "benchmarks") for path in (root / folder).rglob("*.toml")]
    assert len(files) > 20
    for path in files:
        parse_toml(path.read_bytes(), str(path))
