"""What looks like a secret is redacted in everything that is recorded, and nothing else is changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from planted import FORMS, HARMLESS_TEXTS, planted
from steelyard.contracts import observe
from steelyard.errors import InputError
from steelyard.inputs.site import load_site
from steelyard.inputs.study import single_run
from steelyard.launch import redacted
from steelyard.launch.redacted import redact_log, without_secrets
from steelyard.redact import MARK, clean, looks_secret, redact
from steelyard.worker.measure.writer import EventLog

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Within

TOKEN = next(entry.secret for entry in planted(1) if entry.form == "GitHub")
AROUND = ("{}", "/scratch/{}/x", "x='{}'", "({})", "RuntimeError: {} failed", "a {},b", 'x="{}"', "é{}é İ {}")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_redacted_wherever_it_stands(form: str) -> None:
    made = [entry for seed in range(20) for entry in planted(len(FORMS), seed) if entry.form == form]
    for entry in made:
        for around in AROUND:
            text, count = redact(around.replace("{}", entry.text))
            assert entry.secret not in text
            assert count
            assert redact(text) == (text, 0)


@pytest.mark.parametrize("text", HARMLESS_TEXTS)
def test_harmless_texts_stay(text: str) -> None:
    assert redact(text) == (text, 0)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("https://me:hunter2@host:8080/a?b=1", f"https://{MARK}@host:8080/a?b=1"),
        ("redis://:hunter2@host", f"redis://{MARK}@host"),
        ("https://me:p@ss@host/x", f"https://{MARK}@host/x"),
        ("password=hunter", f"password={MARK}"),
        ("Password: hunter2, next", f"Password: {MARK}, next"),
        ('{"db_password": "two words", "n": 1}', f'{{"db_password": "{MARK}", "n": 1}}'),
        ("FABRIC_PASS=hunter GPU_PW=hunter", f"FABRIC_PASS={MARK} GPU_PW={MARK}"),
        ("curl -H 'X-Api-Key: abc' -u me:hunter2 x", f"curl -H 'X-Api-Key: {MARK}' -u me:{MARK} x"),
        ("?token=abc&n=2", f"?token={MARK}&n=2"),
        ("apiKey => 'abc'", f"apiKey => '{MARK}'"),
        ("<password>hunter</password>", f"<password>{MARK}</password>"),
        ("os.environ['TOKEN'] = 'abc123def'", f"os.environ['TOKEN'] = '{MARK}'"),
        ("--token abc --seed 1", f"--token {MARK} --seed 1"),
    ],
)
def test_only_the_secret_is_replaced(text: str, left: str) -> None:
    assert redact(text)[0] == left


# The ways in which public scanners for secrets expect a password to be assigned.
@pytest.mark.parametrize(
    "text",
    [
        'password = "{}"', "apikey = {}", "api_key: '{}'", "aws_secret_access_key: {}", "db_pass: {},", "passwd: {}`",
        'private_key: {}"', "secret: {}'", 'if (apikey == "{}") {{', 'apikey := "{}"', "aws_secret_access_key := `{}`",
        'password "{}";', "my_password={}", "client_secret={}", '"password": "{}",', "'secret': '{}'", "pwd={}",
        "access_token={}&x=1", "auth_token: {}", "credentials={}", "SECRET_KEY='{}'", 'password\\": \\"{}\\"',
    ],
)  # fmt: skip
def test_assignments(text: str) -> None:
    secret = "m2h-o9p_e4nobodyfinds"
    assert secret not in redact(text.replace("{}", secret))[0]


def test_data_is_cleaned_by_names_and_words() -> None:
    data = {"a": ["run", "--password", "x", "--seed", "1"], "env.MY_TOKEN": "abc123def", "n": 3, "max_tokens": "512"}
    found, count = clean(data)
    assert found == {"a": ["run", "--password", MARK, "--seed", "1"], "env.MY_TOKEN": MARK, "n": 3, "max_tokens": "512"}
    assert count == 2
    assert clean(found) == (found, 0)


@pytest.mark.parametrize(
    "part",
    [
        "a",
        "token",
        "key=",
        'password="',
        "sk-",
        "https://",
        "-",
        "--a-",
        "-----BEGIN PRIVATE KEY-----",
        "eyJ",
        "M",
        "0",
        "authorization",
        "authorization:\n",
        "wandb",
        "bearer ",
        "?_-",
        "login a ",
        'pass="\\',
        "s.",
        "secret key ",
        ".",
        "api_",
        "aaa0Q~",
        "token='",
        "-u a",
        "basic YTpi ",
        "pw:bbbbb1 ",
        "://",
        "@",
        " ",
        "\n",
        '"',
        "\\",
        "İ",
        "=:",
    ],
)
def test_hostile_texts_take_no_longer(part: str, within: Within) -> None:
    text = part * (200_000 // len(part))
    # In proportion to the length: 0.09 s was the most measured. With its square it would be seconds.
    with within(1):
        assert redact(text)


# -- where things are recorded


def test_events_have_no_secret(tmp_path: Path) -> None:
    log = EventLog(tmp_path, 0)
    log.end(
        observe.Status(code="failed", reason=f"OSError: https://me:hunter2@host {TOKEN}", evidence={"where": TOKEN})
    )
    text = (tmp_path / "events-00000.jsonl").read_text()
    assert TOKEN not in text
    assert "hunter2" not in text
    assert json.loads(text)["reason"] == f"OSError: https://{MARK}@host {MARK}"


def test_launches_and_logs_have_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = observe.Launch(
        launcher="local", host="h", command=("worker", f"/tmp/{TOKEN}/raw"), started_at="", wall_s=1.0, exit_code=0
    )
    assert without_secrets(launch).command == ("worker", f"/tmp/{MARK}/raw")
    log = tmp_path / observe.WORKER_LOG
    redact_log(tmp_path, tmp_path)
    log.write_bytes(b"a\xff\n")
    redact_log(tmp_path, tmp_path)
    assert log.read_bytes() == b"a\xff\n"
    log.write_text(f"one\n{TOKEN}\ntwo\n")
    redact_log(tmp_path, tmp_path)
    assert log.read_text() == f"one\n{MARK}\ntwo\n"
    monkeypatch.setattr(redacted, "MAX_LOG_BYTES", 4)
    redact_log(tmp_path, tmp_path)
    assert log.read_text().endswith("two\n")
    assert [path.name for path in tmp_path.iterdir()] == [observe.WORKER_LOG]


SITE = """name = "x"
scheduler = "slurm"
[pools.a-b]
architecture = "x86_64"
devices_per_node = 1
"""


@pytest.mark.parametrize(
    "line",
    [
        f'environment = {{ NCCL_DEBUG = "{TOKEN}" }}',
        'environment = { HF_TOKEN = "abc" }',
        'environment = { FABRIC_PASS = "hunter" }',
        'environment = { http_proxy = "http://me:hunter2@proxy:3128" }',
        f'options = ["--comment={TOKEN}"]',
    ],
)
def test_sites_with_secrets_are_refused(line: str, tmp_path: Path) -> None:
    for text in (f"{SITE}{line}\n", SITE.replace("[pools", f"{line}\n[pools")):
        if line.startswith("options") and not text.endswith("]\n"):
            continue
        (tmp_path / "s.toml").write_text(text)
        with pytest.raises(InputError) as caught:
            load_site(tmp_path / "s.toml")
        told = str(caught.value)
        assert "secret" in told
        assert "modules.init" in told
        assert "Kubernetes Secret" in told
        assert not any(word in told for word in (TOKEN, "hunter", "abc"))


def test_sites_without_secrets_are_accepted(tmp_path: Path) -> None:
    harmless = 'environment = { NCCL_IB_PKEY = "1", HF_TOKEN_PATH = "/home/me/t", TOKENIZERS_PARALLELISM = "false" }'
    (tmp_path / "s.toml").write_text(
        f'{SITE}{harmless}\n[cluster.pod.spec]\nimagePullSecrets = [{{ name = "regcred" }}]\n'
    )
    assert load_site(tmp_path / "s.toml").cluster.pod["spec"]["imagePullSecrets"] == [{"name": "regcred"}]
    assert not looks_secret("GOOGLE_APPLICATION_CREDENTIALS", "/home/me/key.json")


@pytest.mark.parametrize("settings", [{"model": {"size": TOKEN}}, {"model": {"api_key": "abc"}}])
def test_settings_with_secrets_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InputError) as caught:
        single_run({"workload": "sim", **settings}, study="s", seed=1, repeats=1, taken=lambda _name: set())
    assert "secret" in str(caught.value)
    assert TOKEN not in str(caught.value)
