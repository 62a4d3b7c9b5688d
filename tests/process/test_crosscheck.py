"""A run's joules beside a wattmeter's and Slurm's, through the verb: constant power, so that the truth is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from steelyard.cli.main import main

UNIX_S = 1_794_744_000.0
POWER_W = 300.0


@pytest.fixture
def run_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """A simulated run at constant power whose sampler says when it began by the calendar."""
    monkeypatch.chdir(tmp_path)
    settings = [
        "sim.step_time_s=0.1",
        f"sim.power.idle_w={POWER_W}",
        f"sim.power.compute_w={POWER_W}",
        'sim.sensors=[{"kind": "counter", "period_s": 0.1, "limit_w": 400.0}]',
    ]
    assert (
        main(
            [
                "run",
                "sim",
                "--max-steps",
                "300",
                "--min-steps",
                "300",
                *[w for s in settings for w in ("--set", s)],
                "--json",
            ]
        )
        == 0
    )
    name: str = json.loads(capsys.readouterr().out)["runs"][0]["run_id"]
    (file,) = tmp_path.glob("**/sensors-00000.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "sampler":
            line["unix_s"] = UNIX_S
    file.chmod(0o644)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return name


def meter(power_w: float) -> str:
    Path("meter.csv").write_text(
        "timestamp,power_w\n" + "".join(f"{UNIX_S - 10 + n},{power_w:.1f}\n" for n in range(100))
    )
    return "meter.csv"


@pytest.mark.parametrize(
    ("power_w", "scope", "answer"),
    [
        (300.0, "device", "agree"),
        (450.0, "device", "disagree"),
        (700.0, "node", "consistent"),
        (200.0, "node", "disagree"),
        (300.0, None, "unknown"),
    ],
)
def test_a_meter_is_held_against_the_run(
    run_id: str, power_w: float, scope: str | None, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ["--meter", meter(power_w), *(["--meter-scope", scope] if scope else []), "--json"]
    main(["energy", run_id, *said])
    found = json.loads(capsys.readouterr().out)["meters"]["meter"]
    assert found["answer"] == answer
    assert found["ratio"] == pytest.approx(power_w / POWER_W, rel=0.02)


def test_slurm_without_energy_is_unknown_and_not_zero(run_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    start, end = int(UNIX_S), int(UNIX_S) + 37
    Path("sacct.txt").write_text(
        f"JobIDRaw|Start|End|ConsumedEnergyRaw\n7.0|{start}|{end}|0\n7.1|{start}|{end}|11000\n"
    )
    main(["energy", run_id, "--slurm", "sacct.txt", "--slurm-plugin", "gpu"])
    said = " ".join(capsys.readouterr().out.split())
    assert "Slurm step 7.0: unknown" in said
    assert "Slurm step 7.1: agree" in said


def test_a_meter_needs_one_run_that_knows_the_calendar(
    run_id: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["energy", "adhoc", "--meter", "missing.csv"]) == 2
    assert "missing.csv" in capsys.readouterr().err
    main(["run", "sim", "--max-steps", "20", "--json"])
    capsys.readouterr()
    assert main(["energy", "adhoc", "--meter", meter(300.0)]) == 2
    assert "2 runs are selected" in capsys.readouterr().err


def test_what_held_the_clocks_back_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    states = [
        {"clock_mhz": 1980.0, "power_capped": 0.0, "thermal": 0.0, "limit_w": 500.0, "default_limit_w": 700.0},
        {"from_s": 7.0, "clock_mhz": 1400.0, "power_capped": 1.0, "thermal": 0.0, "limit_w": 500.0},
    ]
    settings = {
        "sim.step_time_s": 0.1, "sim.states": states, "sim.sensors": [{"period_s": 0.1}],
        "sim.power.idle_w": POWER_W, "sim.power.compute_w": POWER_W,
    }  # fmt: skip
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    main(["run", "sim", "--max-steps", "300", "--min-steps", "300", *words, "--json"])
    run_id = json.loads(capsys.readouterr().out)["runs"][0]["run_id"]
    main(["energy", run_id])
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("held back by: power limit (first seen at 7.0 s)") == 1
    assert "mean clock" in said
    main(["show", run_id])
    said = " ".join(capsys.readouterr().out.split())
    assert "clock_device 1,5" in said
    assert "SY614" in said
    assert "restore the default power limit" in said
