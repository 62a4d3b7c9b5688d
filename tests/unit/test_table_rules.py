"""Table rules on constructed tables and on the reference tables."""

from __future__ import annotations

import math
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import steelyard.reference
from steelyard.audit.check import EXPLAINS, MAX_OF_A_RULE, check_table
from steelyard.audit.table import parse_platforms, parse_table
from steelyard.rules.arithmetic.tables import replicas_of
from steelyard.rules.rule import codes
from steelyard.rules.table.bases import vote
from steelyard.rules.table.diagnosis import Diagnosis, _gather, diagnose
from steelyard.rules.table.relations import RELATIONS, Bounds, exactly, observed, solve
from steelyard.rules.table.row import Row

BASE = 49_999.0
MINE = ("SY301", "SY303", "SY401", "SY503", "SY504", "SY505", "SY506", "SY507", "SY508", "SY509", "SY703", "SY704")


def found(text: str, *only: str) -> list:
    wanted = only or MINE
    return [finding for finding in check_table(parse_table(text, "t.csv")) if finding.code in wanted]


def reference(name: str) -> list:
    files = resources.files(steelyard.reference)
    machines = parse_platforms((files / "platforms.csv").read_text(encoding="utf-8"), "platforms.csv")
    table = parse_table((files / f"{name}.csv").read_text(encoding="utf-8"), f"{name}.csv", machines)
    return [finding for finding in check_table(table) if finding.code in MINE]


def scaling_table(cells: dict[int, dict[str, str]], head: str = "devices") -> str:
    """Return rows of one model: figures such as {"throughput": "1005 images/s"} by number of devices."""
    lines = [
        f"{devices},{metric},{text.replace(' ', ',')}\n"
        for devices, row in cells.items()
        for metric, text in row.items()
    ]
    return f"{head},metric,value,unit\n" + "".join(lines)


EPOCHS = {
    1: {"throughput": "1005 images/s", "epoch_time": "49.75 s"},
    2: {"throughput": "1951 images/s", "epoch_time": "25.63 s"},
    4: {"throughput": "3799 images/s", "epoch_time": "13.16 s"},
    8: {"throughput": "7212 images/s", "epoch_time": "6.933 s"},
}


def changed(devices: int, **figures: str) -> str:
    return scaling_table({**EPOCHS, devices: {**EPOCHS[devices], **figures}})


# --- the relations ----------------------------------------------------------------------------------------------------


def test_every_relation_is_a_product_of_known_truth():
    devices, nodes, rate, time, power, base = 8.0, 2.0, 4000.0, 12.5, 2400.0, 600.0
    energy = power * time
    truth = {
        "devices": devices, "nodes": nodes, "throughput": rate, "epoch_time": time, "train_time": time, "power": power,
        "energy": energy, "energy_per_epoch": energy, "items_per_energy": rate / power, "epoch_work": rate * time,
        "train_work": rate * time, "step_time": 0.064, "step_work": 256.0, "speedup": rate / base,
        "base_throughput": base, "base_epoch_time": rate * time / base, "base_train_time": rate * time / base,
        "efficiency": rate / base / devices, "base_throughput_per_device": base, "base_devices": 1.0,
        "base_epoch_device_time": rate * time / base, "base_train_device_time": rate * time / base,
        "other_rate": rate / 512, "length_ratio": 512.0, "work_done": rate * time / 1.1, "overhead": 1.1,
        "flops_per_second": rate * 6e9, "flops_per_second_per_device": rate * 6e9 / devices, "flops_per_item": 6e9,
        "mfu": 0.4, "peak": rate * 6e9 / devices / 0.4, "cost": 30.0, "cost_per_hour": 0.3, "billed": 8.0,
    }  # fmt: skip
    for over in ("speedup_over_precision", "speedup_over_system"):
        truth |= {over: 2.5, f"{over}_base_throughput": rate / 2.5, f"{over}_base_step_time": 0.064 * 2.5}
        truth |= {f"{over}_base_epoch_time": time * 2.5, f"{over}_base_train_time": time * 2.5}
    for name in ("throughput", "power", "energy", "energy_per_epoch"):
        truth |= {f"{name}_per_device": truth[name] / devices, f"{name}_per_node": truth[name] / nodes}
    for relation in RELATIONS:
        assert sum(sign * math.log(truth[name]) for name, sign in relation) == pytest.approx(0, abs=1e-12), relation


def test_power_is_deduced_from_rate_and_samples_per_energy():
    text = "devices,metric,value,unit\n4,throughput,64.99,images/s\n4,images_per_energy,4.08,images/Wh\n"
    known = solve(observed(parse_table(text, "t.csv").rows[0])).known
    bounds = known["power_per_device"]
    assert bounds.middle == pytest.approx(64.99 / 4.08 * 3600 / 4, rel=1e-3)
    assert bounds.sources == {"throughput", "items_per_energy", "devices"}
    assert math.exp(bounds.high - bounds.low) == pytest.approx((64.995 / 64.985) * (4.085 / 4.075))


@given(
    st.floats(1, 1e6),
    st.floats(1, 1e5),
    st.integers(1, 512),
    st.floats(50, 1e5),
    st.integers(2, 5),
    st.integers(0, 2**6),
)
@settings(max_examples=200)
def test_figures_of_one_truth_never_clash(rate, time, devices, power, digits, chosen):
    truth = {
        "throughput": (rate, "images/s"), "throughput_per_device": (rate / devices, "images/s"),
        "epoch_time": (time, "s"), "energy_per_epoch": (power * time / 3600, "Wh"), "power": (power / 1000, "kW"),
        "images_per_energy": (rate / power * 3600, "images/Wh"),
    }  # fmt: skip
    lines = [
        f"{devices},{metric},{value:.{digits - 1}e},{unit}\n"
        for place, (metric, (value, unit)) in enumerate(truth.items())
        if not chosen >> place & 1
    ]
    assert found("devices,metric,value,unit\n" + "".join(lines), "SY504", "SY505", "SY506", "SY507") == []


def test_a_metric_that_is_not_known_takes_part_in_nothing():
    text = changed(8, **{"val_accuracy@epoch10": "0.47 fraction", "expected_throughput": "1 images/s"})
    assert found(text) == []


def test_tokens_and_images_are_not_the_same_work():
    text = scaling_table({1: {"throughput": "1005 tokens/s", "images_per_energy": "3.05 images/J", "power": "1.0 W"}})
    assert found(text) == []


def test_the_largest_camp_wins_and_two_equal_ones_are_both_told():
    near, far = Bounds(0.0, 0.2), Bounds(1.0, 1.1)
    (camp,) = vote([near, Bounds(0.1, 0.3), far])
    assert camp[1] == (0, 1)
    assert camp[0][:2] == (0.1, 0.2)
    assert {members for _, members in vote([near, far])} == {(0,), (1,)}
    assert vote([]) == []
    assert exactly(1.0)[:2] == (0.0, 0.0)


# --- arithmetic -------------------------------------------------------------------------------------------------------


def test_consistent_rows_give_nothing():
    assert found(scaling_table(EPOCHS)) == []


def test_other_work_names_the_row_that_is_alone():
    (finding,) = found(changed(4, epoch_time="19.74 s"))
    assert (finding.code, finding.place, finding.severity) == ("SY503", "line 6", "error")
    assert "50.0 % more than the 50,00" in finding.message
    assert finding.evidence == "throughput 3799 images/s x epoch_time 19.74 s"


def test_a_small_disagreement_is_a_note():
    (finding,) = found(changed(4, epoch_time="13.24 s"))
    assert (finding.code, finding.severity, finding.place) == ("SY503", "note", "line 6")
    (finding,) = found(changed(4, epoch_time="13.82 s"))
    assert (finding.code, finding.severity) == ("SY503", "warning")


@pytest.mark.parametrize(
    ("count", "message"),
    [(1, "row 1"), (2, "row 2; 1 more row differs by less"), (3, "row 3; 2 more rows differ by less")],
)
def test_small_disagreements_are_one_note(count, message):
    rows = parse_table(scaling_table(EPOCHS), "t.csv").rows
    small = [Diagnosis("SY503", (rows[n],), 1e-3 * n, f"row {n}", "figures") for n in range(1, count + 1)]
    large = Diagnosis("SY503", (rows[0],), 1.0, "row 0", "figures")
    assert [made.message for made in _gather([large, *small])] == ["row 0", message]


def test_a_last_batch_that_is_left_out_is_not_other_work():
    # 50,000 images in batches of 2,048 are 49,152 when the last one is dropped.
    def table(batch: int) -> str:
        rows = [
            (1, 250, 1005.3, 50_000),
            (2, 500, 1951.2, 50_000),
            (4, 1000, 3799.4, 50_000),
            (8, batch, 7212.4, 49_152),
        ]
        return "devices,global_batch,metric,value,unit\n" + "".join(
            f"{n},{size},throughput,{rate},images/s\n{n},{size},epoch_time,{work / rate:.4f},s\n"
            for n, size, rate, work in rows
        )

    assert found(table(2048), "SY503") == []
    assert [finding.place for finding in found(table(64), "SY503")] == ["line 8"]


def test_two_rows_that_disagree_are_both_named():
    rows = {1: EPOCHS[1], 4: {**EPOCHS[4], "epoch_time": "19.74 s"}}
    (finding,) = found(scaling_table(rows))
    assert (finding.code, finding.place) == ("SY503", "line 2 and line 4")


def test_an_epoch_of_a_fixed_number_of_batches_grows_with_the_batch():
    lines = (
        "64,throughput,65.21,images/s\n64,epoch_time,3.926,s\n128,throughput,97.31,images/s\n128,epoch_time,5.261,s\n"
    )
    assert found("global_batch,metric,value,unit\n" + lines) == []


def test_training_to_a_quality_may_take_other_epochs_in_each_row():
    rows = {n: {"throughput": f"{n * 993.7:.5g} images/s", "train_time": f"{t} s"} for n, t in ((1, 931.2), (2, 622.9))}
    rows[4] = {"throughput": "3891 images/s", "train_time": "331.7 s"}
    assert found(scaling_table(rows)) == []


@pytest.mark.parametrize(
    ("figures", "code", "said"),
    [
        ({"epoch_time": "0.2193 s"}, "SY505", "epoch_time 0.2193 s fits the other figures only if the unit is min"),
        ({"throughput": "3.799 images/s"}, "SY505", "kimages/s"),
        ({"throughput": "949.8 images/s"}, "SY506", "too small by a factor of 4.00, the number of devices"),
        (
            {"throughput_per_device": "3799 images/s"},
            "SY506",
            "throughput_per_device 3799 images/s is too large by a factor of 4.00",
        ),
        ({"throughput_per_device": "1899 images/s"}, "SY507", "those of 2 devices, but the row says 4"),
        ({"throughput_per_device": "1204 images/s"}, "SY504", "throughput_per_device 1204 images/s, but"),
        ({"power": "1201 W", "energy_per_epoch": "23.7 kJ"}, "SY504", "power give 15.81 kJ"),
        ({"power": "1201 W", "energy_per_epoch": "4.39 kJ"}, "SY505", "only if the unit is Wh"),
        ({"power": "1201 W", "power_per_device": "0.300 W"}, "SY505", "power_per_device 0.300 W fits"),
    ],
)
def test_the_slip_that_explains_a_clash_is_named(figures, code, said):
    (finding,) = found(changed(4, **figures))
    assert finding.code == code
    assert said in finding.message
    assert finding.place == "line 6"


def test_wide_digits_prove_nothing():
    text = "devices,metric,value,unit\n4,power,1.2,kW\n4,epoch_time,13,s\n4,energy_per_epoch,17,kJ\n"
    assert found(text) == []
    (finding,) = found(text.replace("17,kJ", "19,kJ"))
    assert finding.code == "SY504"


def with_speedup(**other: str) -> str:
    speedups = {1: "1.00 x", 2: "1.94 x", 4: "3.78 x", 8: "7.18 x"}
    rows = {n: {**EPOCHS[n], "speedup": speedups[n]} for n in EPOCHS}
    rows[8] |= other
    return scaling_table(rows)


@pytest.mark.parametrize(
    ("figures", "code"),
    [
        ({}, None),
        ({"speedup": "3.70 x"}, "SY508"),
        ({"speedup": "5.20 x"}, "SY504"),
        ({"efficiency": "89.7 %"}, None),
        ({"efficiency": "44.9 %"}, "SY507"),
    ],
)
def test_speedups_follow_from_one_base(figures, code):
    findings = found(with_speedup(**figures))
    assert [(finding.code, finding.place) for finding in findings] == ([(code, "line 11")] if code else [])


def test_a_base_without_a_speedup_is_the_row_of_fewest_devices():
    text = "devices,metric,value,unit\n1,train_time,36.67,min\n4,train_time,19.74,min\n4,speedup,{},x\n"
    assert found(text.format("1.86")) == []
    assert [finding.code for finding in found(text.format("1.25"))] == ["SY504"]


def test_each_system_may_have_its_own_base():
    rates = {"A": (1005, 1951, 3799), "B": (2204, 4318, 8401)}
    lines = [
        f"{system},{n},{metric},{value}\n"
        for system, series in rates.items()
        for n, rate in zip((1, 2, 4), series, strict=True)
        for metric, value in (("throughput", f"{rate},images/s"), ("speedup", f"{rate / series[0]:.2f},x"))
    ]
    assert found("system,devices,metric,value,unit\n" + "".join(lines)) == []


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("4,DDP,32,128,", False),
        ("4,DDP,32,64,", True),
        ("4,DDP,32,256,", False),
        ("4,DDP,32,256,2", False),
        ("4,DDP,32,256,4", True),
        ("4,pipeline 4,32,64,", False),
        ("4,,32,64,", False),
        ("1,,32,48,", True),
        ("16,4 replicas of 4 IPUs,32,128,", False),
        ("16,4 replicas of 4 IPUs,32,160,", True),
    ],
)
def test_batches_multiply_where_replicas_are_known(row, wrong):
    head = "devices,parallel,batch,global_batch,accumulation,metric,value,unit\n"
    assert bool(found(head + row + ",throughput,901,images/s\n", "SY509")) is wrong


def test_replicas_are_unknown_unless_the_row_says_so():
    for text, replicas in (("DDP", 4.0), ("2 replicas, 1 host", 2.0), ("tensor 4", None), ("FSDP + TP", None)):
        assert replicas_of(Row("x", {"devices": 4, "parallel": text}, {})) == replicas


# --- scaling, energy, plausibility ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("time", "wrong"), [("1.08", True), ("1.12", False), ("1.1", False), ("1.15", False)])
def test_superlinear_beyond_rounding_and_noise(time, wrong):
    text = f"devices,metric,value,unit\n1,train_time,4.59,h\n4,train_time,{time},h\n"
    assert [finding.code for finding in found(text)] == (["SY301"] if wrong else [])


def test_sublinear_scaling_is_no_finding():
    assert found(scaling_table({1: {"train_time": "1948.01 min"}, 4: {"train_time": "509.7 min"}})) == []


def sweep(rows: list[tuple[int, str, int, int]]) -> str:
    lines = [f"{n},{precision},{batch},throughput,{rate},images/s\n" for n, precision, batch, rate in rows]
    return "devices,precision,batch,metric,value,unit\n" + "".join(lines)


@pytest.mark.parametrize(
    ("rows", "places"),
    [
        ([(1, "fp32", 32, 2641), (4, "fp16", 256, 37511)], ["line 3"]),
        ([(1, "fp16", 256, 9901), (4, "fp16", 256, 37511)], []),
        ([(1, "fp16", 256, 9901), (4, "fp16", 64, 35511)], []),
        ([(1, "fp32", 32, 2641), (1, "fp16", 32, 4641), (4, "fp32", 32, 9641), (4, "fp16", 32, 16641)], []),
        ([(1, "fp32", 32, 2641), (1, "fp16", 32, 4641), (4, "fp32", 32, 9641), (4, "fp8", 32, 16641)], ["line 5"]),
        ([(1, "fp32", 10, 271), (2, "fp32", 10, 533), (2, "fp32", 128, 3211), (2, "fp32", 512, 8641)], []),
    ],
)
def test_a_scaling_series_changes_the_devices_alone(rows, places):
    assert [finding.place for finding in found(sweep(rows), "SY303")] == places


def test_a_clean_base_elsewhere_is_told():
    text = sweep([(1, "fp32", 32, 2641), (4, "fp16", 256, 37511), (8, "fp16", 256, 64597)])
    # A table that claims no scaling has no error in it.
    assert [finding.severity for finding in found(text, "SY303")] == ["warning", "warning"]
    four, eight = found(f"{text}4,fp16,256,speedup,14.2,x\n", "SY303")
    assert (four.severity, eight.severity) == ("error", "warning")
    assert "with equal settings 1.72x over 4 devices, 86.1 %" in eight.evidence


@pytest.mark.parametrize(
    ("figures", "severity"),
    [
        ("power_per_device,318,W", "error"),
        ("power_per_device,312,W", None),
        ("power,1.35,kW", "warning"),
        ("power,9.5,kW", "error"),
        ("power,1.1,kW", None),
    ],
)
def test_a_device_cannot_draw_more_than_its_limit(figures, severity):
    text = f"system,devices,power_limit_w,metric,value,unit\nA,4,300,{figures}\n"
    assert [finding.severity for finding in found(text)] == ([severity] if severity else [])


def test_a_system_is_held_against_its_own_limit():
    machines = parse_platforms(
        "platform,accelerator,accelerators_per_node,tdp_w_per_device,tdp_w_per_system\nA,x,8,400,6500\n", "machines.csv"
    )
    for kw, count in (("5.9", 0), ("7.1", 1)):
        text = f"system,devices,metric,value,unit\nA,8,power,{kw},kW\n"
        assert len([f for f in check_table(parse_table(text, "t.csv", machines)) if f.code == "SY401"]) == count


def machines_table(ratios: list[float]) -> str:
    lines = [
        f"{system},m{i},train_time,{hours:.4g},h\n"
        for i, ratio in enumerate(ratios)
        for system, hours in (("A", 10.0 + i), ("B", (10.0 + i) / ratio))
    ]
    return "system,model,metric,value,unit\n" + "".join(lines)


def test_an_outlier_needs_enough_peers():
    usual = [1.48, 1.65, 1.72, 2.19, 1.53, 1.67, 2.02, 1.64, 2.03, 2.18, 1.68, 1.74]
    assert [finding.code for finding in found(machines_table([*usual, 0.39]))] == ["SY703"]
    assert found(machines_table([*usual, 3.2])) == []
    assert found(machines_table([1.5, 1.6, 0.39])) == []


def test_an_outlier_is_the_row_that_is_far_from_all_machines():
    text = machines_table([1.48, 1.65, 1.72, 2.19, 1.53, 1.67, 2.02, 1.64, 2.03, 2.18, 1.68, 0.39])
    for i in range(12):
        text += f"C,m{i},train_time,{(10 + i) / 3.1:.4g},h\n"
    (finding,) = found(text)
    assert finding.place == "line 25"


def test_a_copied_row_is_told_and_a_coincidence_is_not():
    text = "devices,metric,value,unit\n1,throughput,{},images/s\n2,throughput,{},images/s\n"
    assert [finding.code for finding in found(text.format("3717.2", "3717.2"))] == ["SY704"]
    assert found(text.format("37", "37")) == []


# --- each cause is reported once --------------------------------------------------------------------------------------


def test_a_slip_is_told_and_not_what_follows_from_it():
    text = changed(4, throughput="15197 images/s", throughput_per_device="949.8 images/s")
    assert [finding.code for finding in found(text)] == ["SY506"]
    assert all(code in codes() for lesser in EXPLAINS.values() for code in lesser)


def test_many_findings_end():
    rows = "".join(f"{n},throughput,401.6,images/s\n{n},throughput_per_device,502.0,images/s\n" for n in range(10, 90))
    findings = found("devices,metric,value,unit\n" + rows)
    assert len(findings) <= 2 * MAX_OF_A_RULE
    assert any("more findings like this one" in finding.message for finding in findings)


def test_the_answer_for_the_last_table_is_kept_for_that_table_alone():
    good, bad = parse_table(scaling_table(EPOCHS), "a.csv"), parse_table(changed(4, epoch_time="19.74 s"), "b.csv")
    assert [len(diagnose(table)) for table in (good, bad, good)] == [0, 1, 0]


# --- the reference tables ---------------------------------------------------------------------------------------------


def test_two_rows_count_other_work():
    sixty_four, sixteen, small = reference("aces-ipu")
    assert {finding.code for finding in (sixty_four, sixteen, small)} == {"SY503"}
    assert sixty_four.severity == sixteen.severity == "error"
    assert "1,268,913 images, 17.2 % fewer" in sixty_four.message
    assert sixty_four.place.startswith("table 3")
    assert "105,580 images" in sixteen.message
    assert sixteen.place.startswith("table 4")
    assert small.severity == "note"
    assert "devices 8" in small.evidence
    assert "devices 16" in small.evidence


def test_energy_above_the_limit_of_the_device():
    (finding,) = reference("caraml")
    assert (finding.code, finding.severity) == ("SY401", "error")
    assert finding.message == "the figures give 350.6 to 14,336 W per device in 9 rows, but the limit is 300 W"


@pytest.mark.parametrize(
    ("ways", "severity"),
    [
        (("1 replicas, 1 host instances", "4 replicas, 2 host instances"), None),
        (("", "DDP"), None),
        (("pipeline of 1", "4 replicas"), "warning"),
    ],
)
def test_counts_in_the_way_of_dividing_follow_the_devices(ways: tuple[str, str], severity: str | None):
    text = "devices,parallel,metric,value,unit\n" + "".join(
        f'{devices},"{way}",throughput,{rate},images/s\n'
        for devices, way, rate in zip((1, 4), ways, (1005, 3700), strict=True)
    )
    assert [finding.severity for finding in found(text, "SY303")] == ([severity] if severity else [])


def test_the_confounded_speedup():
    four, eight = reference("olivia-gh200")
    assert (four.code, four.severity, four.place) == ("SY303", "warning", "table test 2, line 6")
    for part in ("14.2x", "355 %", "fp32 to fp16", "batch 32 to 256", "loader.workers 0 to 8"):
        assert part in four.message
    assert eight.code == "SY303"
    assert "86.1 %" in eight.evidence


def test_the_superlinear_detector_and_the_outlier():
    superlinear, outlier = reference("nrp-gh200")
    assert (superlinear.code, outlier.code) == ("SY301", "SY703")
    assert "4.25x as fast on 4 times the devices: efficiency 106 %" in superlinear.message
    assert "0.388x, but 1.48x to 3.64x for 15 other models or data sets" in outlier.message
    assert "Faster R-CNN" in outlier.evidence


# --- wide tables ------------------------------------------------------------------------------------------------------

RATES = {"fp32": (1005, 1951, 3799, 7212), "fp16": (2871, 5311, 9216, 15502)}


def wide(change: dict[tuple[str, int], str] | None = None, base: str = "1") -> str:
    """Return two precisions on 1 to 8 devices with their speed-ups, some of them changed."""
    lines = []
    for precision, rates in RATES.items():
        for devices, rate in zip((1, 2, 4, 8), rates, strict=True):
            speedup = base if devices == 1 else (change or {}).get((precision, devices), f"{rate / rates[0]:.2f}")
            lines += [f"{precision},{devices},throughput,{rate},images/s", f"{precision},{devices},speedup,{speedup},x"]
    return "\n".join(["precision,devices,metric,value,unit", *lines, ""])


@pytest.mark.parametrize("base", ["1", "1.00", ""])
def test_the_base_row_decides_even_if_most_speedups_are_wrong(base):
    assert found(wide(base=base), *MINE, "SY512") == []
    change = {("fp32", 2): "1.86", ("fp32", 4): "3.61", ("fp32", 8): "7.45", ("fp16", 2): "1.96", ("fp16", 8): "5.65"}
    wrong = [entry for finding in found(wide(change, base), *MINE, "SY512") for entry in finding.wrong]
    assert sorted(entry.printed for entry in wrong) == sorted(change.values())
    assert {entry.printed: entry.recomputed for entry in wrong}["1.86"] == "1.941"


def test_swapped_columns_are_one_finding():
    swapped = {(p, n): f"{RATES[q][at] / RATES[q][0]:.2f}" for at, n in ((1, 2), (2, 4), (3, 8)) for p, q in
               (("fp32", "fp16"), ("fp16", "fp32"))}  # fmt: skip
    (finding,) = found(wide(swapped), *MINE, "SY512")
    assert finding.code == "SY512"
    assert "precision fp32 and precision fp16 is swapped in 3 pairs of rows" in finding.message
    assert len(finding.wrong) == 6


def test_two_swapped_digits_are_named():
    (finding,) = found(wide({("fp32", 4): "3.87"}))
    assert "the digits 8 and 7 may be swapped" in finding.message


def test_cut_digits_are_one_note():
    cut = {(p, n): f"{int(100 * rates[at] / rates[0]) / 100:.2f}" for p, rates in RATES.items() for at, n in
           ((1, 2), (2, 4), (3, 8))}  # fmt: skip
    (finding,) = found(wide(cut))
    assert (finding.code, finding.severity) == ("SY504", "note")
    assert "cut instead of rounded" in finding.message


def test_two_batches_are_two_curves():
    rows = [(1, 2, "7.57", ""), (1, 4, "8.51", ""), (8, 2, "44.55", "5.88"), (8, 4, "50.56", "5.94")]
    head = "devices,batch,metric,value,unit\n"
    text = head + "".join(f"{n},{b},throughput,{r},images/s\n{n},{b},speedup,{s},x\n" for n, b, r, s in rows)
    assert found(text, *MINE, "SY312") == []
    (wrong,) = found(text.replace("5.94", "6.67"), *MINE, "SY312")
    assert (wrong.code, wrong.place, wrong.wrong[0].recomputed) == ("SY508", "line 8", "5.941")
    assert "relative to the row with devices 1, batch 2; relative to its base" in wrong.message


def test_strong_scaling_by_accumulation_may_be_superlinear():
    head = "devices,batch,accumulation,global_batch,parallel,metric,value,unit\n"
    row = "{n},32,{steps},4096,DDP,throughput,{rate},sequences/s\n{n},32,{steps},4096,DDP,speedup,{speedup},x\n"
    text = head + row.format(n=1, steps=128, rate="35.32", speedup="1.00")
    text += row.format(n=4, steps=32, rate="193.08", speedup="5.47")
    assert [finding.code for finding in found(text)] == ["SY301"]


def test_a_slip_of_the_batch_is_one_finding_for_all_its_rows():
    head = "devices,parallel,batch,accumulation,global_batch,metric,value,unit\n"
    text = head + "".join(f"{n},DDP,126,{64 // n},8192,throughput,{n}00.5,images/s\n" for n in (1, 2, 4))
    (finding,) = found(text, "SY509")
    assert [(entry.name, entry.printed, entry.recomputed) for entry in finding.wrong] == [("batch", "126", "128")] * 3


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ("latency_p50,40,ms latency_p90,55,ms latency_p99,81,ms latency_mean,43,ms", None),
        ("latency_p50,58,ms latency_p90,55,ms", "SY513"),
        ("latency_p50,40,ms latency_p99,55,ms latency_mean,61,ms", "SY513"),
        ("flops_per_second_per_device,124.8,TFLOP/s mfu,40.0,%", None),
        ("flops_per_second,998.4,TFLOP/s mfu,40.0,%", None),
        ("flops_per_second_per_device,124.8,TFLOP/s mfu,52.0,%", "SY504"),
        ("throughput,65540,tokens/s sequences_per_second,32.0,sequences/s", None),
        ("throughput,65540,tokens/s sequences_per_second,41.0,sequences/s", "SY504"),
        ("train_time,03:19:59,h:mm:ss cost_per_hour,2.50,$/h cost,66.7,$", None),
        ("train_time,03:19:59,h:mm:ss cost_per_hour,2.50,$/h cost,96.7,$", "SY504"),
        ("power,3.2,kW train_time,2.00,h energy,6.4,kWh", None),
        ("power,3.2,kW train_time,2.00,h energy,9.4,kWh", "SY504"),
        ("throughput,65540,tokens/s train_time,4.24,h tokens,1.0,Gtokens", None),
        ("throughput,65540,tokens/s train_time,2.24,h tokens,1.0,Gtokens", "SY504"),
        ("power,79000,W", "SY401"),
        ("power,2.9,kW", None),
    ],
)
def test_relations_within_a_row(lines, code):
    head = "accelerator,devices,precision,sequence_length,metric,value,unit\n"
    text = head + "".join(f"A100,8,bf16,2048,{line}\n" for line in lines.split(" "))
    assert [finding.code for finding in found(text, *MINE, "SY513")] == ([code] if code else [])


def test_a_speedup_between_precisions_follows_from_two_rows():
    head = "devices,precision,metric,value,unit\n1,tf32,throughput,1055.78,images/s\n"
    text = head + "1,mixed,throughput,3410.52,images/s\n1,mixed,speedup_over_precision,{},x\n"
    assert found(text.format("3.23")) == []
    (finding,) = found(text.format("2.18"))
    assert (finding.wrong[0].name, finding.wrong[0].recomputed) == ("speedup_over_precision", "3.230")
