"""The device table: valid entries, names that lead to the right entry, and unknown where it must be."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from steelyard.contracts.observe import DeviceFacts
from steelyard.worker.devices.facts import TABLE, Entry, look_up, table

GIB = 2**30
ENTRIES = json.loads(TABLE.read_text(encoding="utf-8"))
KEYS = {
    "model", "patterns", "peak_flops", "memory_bytes", "memory_bytes_per_s", "dies", "scope", "power_limit_w",
    "sources",
}  # fmt: skip
KINDS = ("fp32", "tf32", "bf16", "fp16", "fp8")
NAMES = {
    "NVIDIA A100-SXM4-80GB": "NVIDIA A100 SXM 80 GB",
    "A100-SXM4-40GB": "NVIDIA A100 SXM 40 GB",
    "NVIDIA A100-PCIE-40GB": "NVIDIA A100 PCIe 40 GB",
    "NVIDIA A100 80GB PCIe": "NVIDIA A100 PCIe 80 GB",
    "NVIDIA H100 80GB HBM3": "NVIDIA H100 SXM",
    "NVIDIA H100 PCIe": "NVIDIA H100 PCIe",
    "NVIDIA H100 NVL": "NVIDIA H100 NVL",
    "NVIDIA H200": "NVIDIA H200 SXM",
    "NVIDIA H200 NVL": "NVIDIA H200 NVL",
    "NVIDIA GH200 480GB": "NVIDIA GH200 96 GB",
    "NVIDIA GH200 120GB": "NVIDIA GH200 96 GB",
    "NVIDIA GH200 144G HBM3e": "NVIDIA GH200 144 GB",
    "NVIDIA B200": "NVIDIA B200",
    "NVIDIA L40S": "NVIDIA L40S",
    "NVIDIA L40": "NVIDIA L40",
    "NVIDIA L4": "NVIDIA L4",
    "NVIDIA A40": "NVIDIA A40",
    "NVIDIA A30": "NVIDIA A30",
    "NVIDIA A10": "NVIDIA A10",
    "Tesla V100-SXM2-32GB": "NVIDIA V100 SXM2 32 GB",
    "Tesla V100-SXM2-16GB": "NVIDIA V100 SXM2 16 GB",
    "Tesla V100-PCIE-16GB": "NVIDIA V100 PCIe 16 GB",
    "Tesla V100-PCIE-32GB": "NVIDIA V100 PCIe 32 GB",
    "Tesla V100S-PCIE-32GB": "NVIDIA V100S PCIe 32 GB",
    "Tesla T4": "NVIDIA T4",
    "AMD Instinct MI250X": "AMD Instinct MI250X",
    "amd instinct mi250": "AMD Instinct MI250",
    "AMD Instinct MI210": "AMD Instinct MI210",
    "AMD Instinct MI300X": "AMD Instinct MI300X",
    "AMD Instinct MI300A": "AMD Instinct MI300A",
    "Intel(R) Data Center GPU Max 1550": "Intel Data Center GPU Max 1550",
    "Intel(R) Data Center GPU Max 1100": "Intel Data Center GPU Max 1100",
    "GAUDI2": "Intel Gaudi 2",
    "HL-225": "Intel Gaudi 2",
    "Graphcore GC200": "Graphcore GC200",
}
UNKNOWN = (
    "",
    "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
    "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
    "NVIDIA A100-SXM-64GB",
    "NVIDIA H100",
    "NVIDIA H100 SXM5 64GB",
    "NVIDIA H800",
    "NVIDIA H20",
    "NVIDIA A10G",
    "NVIDIA A100-40C",
    "NVIDIA A40-8Q",
    "NVIDIA L40S-48Q",
    "NVIDIA RTX A4000",
    "NVIDIA GeForce RTX 4090",
    "AMD Instinct MI300X VF",
    "AMD Instinct MI100",
    "GAUDI",
    "GAUDI3",
    "Intel(R) Xeon(R) Platinum 8480+",
    "AMD EPYC 7742 64-Core Processor",
    "cpu",
    "NVIDIA " * 1000 + "L4",
)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["model"])
def test_an_entry_is_whole_and_sound(entry: dict[str, object]) -> None:
    assert set(entry) - {"note"} == KEYS
    assert entry["scope"] in ("die", "device", "module")
    sources, patterns, peaks = entry["sources"], entry["patterns"], entry["peak_flops"]
    assert isinstance(sources, list)
    assert isinstance(patterns, list)
    assert isinstance(peaks, dict)
    assert sources
    assert all(", https://" in source for source in sources)
    assert patterns
    assert all(len(pattern) < 100 and "*" not in pattern and "+" not in pattern for pattern in patterns)
    assert tuple(peaks) == KINDS
    known = [peaks[kind] for kind in KINDS if peaks[kind] is not None]
    assert known
    assert known == sorted(known)
    assert all(1e12 < flops < 1e16 for flops in known)
    bandwidth = entry["memory_bytes_per_s"]
    assert bandwidth is None or 1e11 < float(str(bandwidth)) < 1e13
    if peaks["fp16"] is not None and peaks["bf16"] is not None:
        assert peaks["fp16"] == peaks["bf16"]


def test_every_entry_is_reached_by_a_name() -> None:
    assert {entry["model"] for entry in ENTRIES} == set(NAMES.values())
    assert len(table()) == len(ENTRIES)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_leads_to_its_model(name: str) -> None:
    facts = look_up(name)
    assert facts.model == NAMES[name]
    assert facts.name == name
    assert facts.sources


@pytest.mark.parametrize("name", UNKNOWN, ids=lambda name: name[:40])
def test_what_is_not_in_the_table_is_unknown(name: str) -> None:
    assert replace(look_up(name), name="") == DeviceFacts(name="")


def test_the_peaks_are_dense() -> None:
    peaks = look_up("NVIDIA H100 80GB HBM3").peak_flops
    assert peaks == {"fp32": 66.9e12, "tf32": 494.7e12, "bf16": 989.4e12, "fp16": 989.4e12, "fp8": 1978.9e12}
    assert look_up("NVIDIA GH200 120GB").peak_flops == peaks
    assert look_up("NVIDIA A100-SXM4-80GB").peak_flops == {
        "fp32": 19.5e12,
        "tf32": 156e12,
        "bf16": 312e12,
        "fp16": 312e12,
    }


def test_a_card_of_two_dies_is_seen_by_the_die() -> None:
    facts = look_up("AMD Instinct MI250X", 63.98 * GIB)
    assert (facts.scope, facts.dies, facts.memory_bytes) == ("die", 2, 64 * GIB)
    assert facts.peak_flops is not None
    assert facts.peak_flops["bf16"] == 191.5e12
    assert facts.memory_bytes_per_s == 1638.4e9


def test_the_memory_distinguishes_a_card_from_its_die() -> None:
    name = "Intel(R) Data Center GPU Max 1550"
    card, die, either = look_up(name, 127 * GIB), look_up(name, 63 * GIB), look_up(name)
    assert (card.scope, die.scope) == ("device", "die")
    assert card.peak_flops is not None
    assert die.peak_flops is not None
    assert card.peak_flops["bf16"] == 2 * die.peak_flops["bf16"] == pytest.approx(838.9e12, rel=1e-4)
    assert (either.peak_flops, either.memory_bytes, either.power_limit_w) == (None, None, 600)


def test_a_name_of_two_models_gives_what_they_share() -> None:
    facts = look_up("AMD Instinct MI250X / MI250")
    assert facts.model == "AMD Instinct MI250X or AMD Instinct MI250"
    assert facts.peak_flops is None
    assert (facts.dies, facts.scope, facts.memory_bytes) == (2, "die", 64 * GIB)
    assert len(facts.sources) == 2


def test_a_part_of_a_device_is_unknown() -> None:
    assert look_up("NVIDIA L40S", 44.4 * GIB).model == "NVIDIA L40S"
    assert look_up("NVIDIA L40S", 24 * GIB).model is None
    assert look_up("AMD Instinct MI300X", 24 * GIB).model is None


def test_patterns_ignore_case_and_spaces() -> None:
    assert look_up("  nvidia  h100   pcie ").model == "NVIDIA H100 PCIe"


def test_an_unknown_memory_fits_any() -> None:
    assert Entry((), DeviceFacts(name="")).has_memory(1.0)
