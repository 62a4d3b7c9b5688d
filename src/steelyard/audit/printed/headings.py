"""What a heading means: a metric or a setting, with unit, precision, scope and percentile. Nothing is guessed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from steelyard.audit.printed import spellings
from steelyard.audit.printed.values import Unit, time_per_item, unit_spelled
from steelyard.rules.table.relations import metric_kind
from steelyard.rules.table.units import counted, unit_of

MAX_HEADING = 200
_SLASH = re.compile(r" ?/ ?")
_METRICS = {_SLASH.sub(" / ", phrase): name for name, phrases in spellings.METRICS.items() for phrase in phrases}
_SETTINGS = {_SLASH.sub(" / ", phrase): name for name, phrases in spellings.SETTINGS.items() for phrase in phrases}
_PER_STEP = ("train time", "training time", "time", "step time", "iteration time", "speed", "latency", "training speed")
_TIMED = ("latency", "ttft", "time_per_token", "step_time")
_SCOPED = ("throughput", "power", "energy", "energy_per_epoch", "flops_per_second", "memory")

_COUNTS = {
    "M": "Mparameters",
    "B": "Gparameters",
    "million": "Mparameters",
    "billion": "Gparameters",
    "K": "kparameters",
}
"""What is counted in a heading such as `Params (M)`."""
_WIDTHS = {"fp64": 8, "fp32": 4, "tf32": 3, "fp16": 2, "bf16": 2, "mixed": 2, "fp8": 1, "mxfp8": 1, "int8": 1}
_GROUP = re.compile(r"[(\[]([^()\[\]]{0,100})[)\]]")
_CAMEL = re.compile(r"(?<=[a-z][a-z])(?=[A-Z][a-z])")
_PRECISION = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    + "|".join(re.escape(name).replace(r"\ ", "[ -]?") for name in sorted(spellings.PRECISIONS, key=len, reverse=True))
    + r")(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_SCOPES = sorted(spellings.DEVICE_WORDS | {"node", "nodes", "host"}, key=len, reverse=True)
_SCOPE = re.compile(
    rf"(?:/|\bper)[ -]?(?P<word>{'|'.join(_SCOPES)})\b"
    rf"|\bper[ -](?P<first>gpu|device|node|chip)\b",
    re.IGNORECASE,
)
_QUANTILE = re.compile(
    r"\bp[ -]?(?P<p>[0-9]{2}(?:\.[0-9]{1,3})?)\b(?!%)"
    r"|(?P<percent>[0-9]{2}(?:\.[0-9]{1,3})?) ?(?:%(?:[ -]?ile)?|th[ -]percentile|th|st|nd|percentile)(?![a-z])"
    r"|\bp(?P<long>999)\b",
    re.IGNORECASE,
)
_AGGREGATE = {
    "mean": "mean",
    "avg": "mean",
    "avg.": "mean",
    "average": "mean",
    "median": "median",
    "min": "min",
    "minimum": "min",
    "max": "max",
    "maximum": "max",
    "std": "std",
    "stdev": "std",
    "standard deviation": "std",
}
_AGGREGATED = re.compile(r"\b(" + "|".join(sorted(map(re.escape, _AGGREGATE), key=len, reverse=True)) + r")(?![a-z])")
_MACHINE = re.compile(
    r"(?:nvidia |amd |intel |google |tesla )*"
    r"(?:[abhvp]\d{3}|gb200|gh200|h20|t4|l4|l40s?|a10g?|a30|a40|a6000|mi\d{3}[xa]?"
    r"|tpu ?v\d\w*|gaudi ?\d?|rtx ?a?\d{4}(?: ?ti)?|trainium ?\d?|mk2|bow)(?:[- ](?:sxm\d?|pcie|\d{2,3} ?gb))*",
    re.IGNORECASE,
)
_SYSTEM = re.compile(r"(?:nvidia )?(?:dgx|hgx)[- ]?\w{0,8}", re.IGNORECASE)
_BETWEEN = r"[\s\]\[()]*"
_FORWARD = re.compile(rf"{_BETWEEN}(?:-|–|—|to|->|→|⇒)+{_BETWEEN}", re.IGNORECASE)
_BACKWARD = re.compile(rf"{_BETWEEN}(?:/|vs\.?|over|versus|relative to|compared to){_BETWEEN}", re.IGNORECASE)
_ENDING = re.compile(r"(?: (?:with|for|to|from|over|vs\.?|in))+$")
_PARTS = re.compile(r"\s+[-–—+|·]+\s*|\s*[-–—+|·]+\s+|\s*[:;|]\s*|,\s+|\s*\+\s*$")
_UNIT_LIKE = re.compile(r"\S{0,12}/\s?\S{1,12}(?:/\S{1,8})?|[A-Za-zµμ%$€]{1,4}|.*\bper\b.*|[A-Za-z]+⁻¹", re.IGNORECASE)


@dataclass(frozen=True)
class Heading:
    """The meaning of one heading."""

    text: str
    """As printed; the lines of a heading over several lines are joined by ` - `."""
    metric: str = ""
    """A name such as throughput_per_device; empty for a setting and an unknown heading."""
    setting: str = ""
    """A name in `rules.table.settings.SETTINGS`, or `any_batch` where the heading does not say per device or global."""
    unit: Unit | None = None
    group: tuple[tuple[str, str], ...] = ()
    """Settings that the heading states for its column, such as precision; columns with equal groups form rows."""
    base: str = ""
    """What a speed-up between precisions or systems is relative to."""
    reason: str = ""
    """Why the column is left out."""
    phrase: str = ""
    listed: tuple[str, ...] = ()
    """Precisions in the order of the values in a cell, for `Batch size / GPU (TF32 and FP16)` over `128 and 256`."""

    @property
    def known(self) -> bool:
        """Return whether the column is read."""
        return bool(self.metric or self.setting) and not self.reason


def precision_of(text: str) -> str:
    """Return the precision that a text names, such as `mixed` for Mixed Precision; empty if none or several."""
    precisions = [_canonical(match[0]) for match in _PRECISION.finditer(text)]
    return precisions[0] if len(set(precisions)) == 1 else ""


def machine_of(text: str) -> str:
    """Return `accelerator` or `system` if the text names one, otherwise empty."""
    text = text.strip()
    return "accelerator" if _MACHINE.fullmatch(text) else "system" if _SYSTEM.fullmatch(text) else ""


@lru_cache(maxsize=4096)
def understand(text: str) -> Heading:
    """Find the meaning of a heading. Every word of it must be known; otherwise the column is left out."""
    if len(text) > MAX_HEADING:
        return Heading(text[:MAX_HEADING], reason="too long for a heading")
    made = Heading(text)
    words = _CAMEL.sub(" ", text.replace("_", " ")).replace("↑", "").replace("↓", "").strip()
    words = re.sub(r"\^\{[^{}]{0,12}\}", "", words)
    words = re.sub(r"speed[ -]up", "speedup", words, flags=re.IGNORECASE)
    if not words:
        return replace(made, reason="no heading")
    if direct := _whole(words, made):
        return direct
    groups = [inner.strip() for inner in _GROUP.findall(words)]
    rest = _GROUP.sub(" ", words).strip()
    if (direct := _whole(rest, made)) and direct.unit and [unit_spelled(group) for group in groups] == [direct.unit]:
        return direct
    extras: list[str] = []
    unit: Unit | None = None
    for group in groups:
        spelled = unit_spelled(group)
        if spelled is not None:
            unit = unit or spelled
        elif (timed := time_per_item(group)) is not None and timed[0] == "steps" and _simplify(rest) in _PER_STEP:
            return replace(made, metric="step_time", unit=Unit(timed[1]), phrase="step time")
        elif group.lower() not in spellings.HARMLESS:
            extras.append(group)
    return _combine(made, rest, extras, unit)


def _whole(words: str, made: Heading) -> Heading | None:
    """Return the meaning of a heading that is a plain setting or only a unit, such as `#GPUs` or `images/s`."""
    plain = _simplify(words)
    if plain in _SETTINGS:
        return replace(made, setting=_SETTINGS[plain], phrase=plain)
    unit = unit_spelled(words)
    if unit is not None and (known := unit_of(unit.name)) is not None:
        if known[0] == "rate":
            name = "flops_per_second" if counted(unit.name) == "FLOP" else "throughput"
            return replace(made, metric=_scoped(name, unit.scope), unit=replace(unit, scope=""))
        if known[0] == "per_energy":
            return replace(made, metric=f"{counted(unit.name)}_per_energy", unit=unit)
    timed = time_per_item(words)
    if timed is not None and timed[0] in ("steps", "epochs", "tokens"):
        name = {"steps": "step_time", "epochs": "epoch_time", "tokens": "time_per_token"}[timed[0]]
        return replace(made, metric=name, unit=Unit(timed[1]))
    return None


def _combine(made: Heading, rest: str, extras: list[str], unit: Unit | None) -> Heading:
    """Take precision, scope and percentile out of the words, and look the others up; `extras` were in parentheses."""
    everything = f"{rest} ({') ('.join(extras)})" if extras else rest
    pair = _pair_of(everything)
    precisions = [_canonical(match[0]) for match in _PRECISION.finditer(everything)]
    extras = [left for extra in extras if (left := _strip(_PRECISION.sub(" ", extra)))]
    rest, extras, scope = _take_scope(_PRECISION.sub(" ", rest), extras)
    if len(set(precisions)) == 1 and not extras:
        if unit is None and (direct := _whole(rest.strip(" -–—:,"), made)) and direct.metric:
            # Only a precision and a unit, such as `FP32 img/s`.
            return replace(direct, group=(("precision", precisions[0]),))
        if not _strip(rest):
            # Only a precision: the caption may say what the figures are.
            return replace(made, group=(("precision", precisions[0]),), unit=unit, reason="not known")
    phrase, labels, own, quantile = _find_timed(rest)
    made, unit = replace(made, phrase=phrase), unit or own
    if phrase in _SETTINGS:
        if _SETTINGS[phrase] == "sequence_length":
            extras = [extra for extra in extras if extra.lower() not in ("t", "tok", "tokens")]
        return _as_setting(made, _SETTINGS[phrase], scope, precisions, [*labels, *extras], unit)
    metric = _METRICS.get(phrase, "")
    # "Model flops utilization (MFU)" says the same twice.
    extras = [extra for extra in extras if not metric or _METRICS.get(_simplify(extra)) != metric]
    if metric == "parameters" and unit is None and len(extras) == 1 and extras[0] in _COUNTS:
        unit, extras = Unit(_COUNTS[extras[0]]), []
    strange = _unknown_unit(metric, extras)
    if not metric or strange:
        return replace(made, reason=f"{strange} is not a known unit" if metric else "not known")
    labels += extras
    if metric in _TIMED and not quantile:
        labels, quantile = _quantile_label(labels)
    return _as_metric(made, metric, scope, quantile, precisions, pair, labels, unit)


def _take_scope(rest: str, extras: list[str]) -> tuple[str, list[str], str]:
    """Return the texts without `per GPU` or `/ node`, and the scope that it names."""
    scope = next((match for text in (rest, *extras) for match in _SCOPE.finditer(text)), None)
    if scope is None:
        return rest, extras, ""
    word = (scope["word"] or scope["first"]).lower()
    left = [short for extra in extras if (short := _strip(_SCOPE.sub(" ", extra)))]
    return _SCOPE.sub(" ", rest), left, "device" if word in spellings.DEVICE_WORDS else "node"


def _find_timed(text: str) -> tuple[str, list[str], Unit | None, str]:
    """Return the known phrase, labels and unit of a text, and the percentile if the phrase is a time with one."""
    phrase, labels, unit = _find_phrase(text)
    if phrase:
        return phrase, labels, unit, ""
    without, quantile = _take_quantile(text)
    phrase, labels, unit = _find_phrase(without) if quantile else ("", [], None)
    return (phrase, labels, unit, quantile) if _METRICS.get(phrase) in _TIMED else ("", [], None, "")


def _as_setting(
    made: Heading, setting: str, scope: str, precisions: list[str], labels: list[str], unit: Unit | None
) -> Heading:
    if scope and (setting not in ("any_batch", "batch", "global_batch") or scope == "node"):
        return replace(made, reason=f"{setting} per {scope} is not known")
    if scope == "device":
        setting = "batch"
    if unit is not None:
        return replace(made, reason=f"a unit, {unit.name}, for a setting")
    stated = tuple(dict.fromkeys(precisions))
    group = _group(stated[0] if len(stated) == 1 else "", labels)
    if group is None:
        return replace(made, reason="not known")
    return replace(made, setting=setting, group=group, listed=stated if len(stated) > 1 else ())


def _as_metric(
    made: Heading,
    metric: str,
    scope: str,
    quantile: str,
    precisions: list[str],
    pair: tuple[str, str] | None,
    labels: list[str],
    unit: Unit | None,
) -> Heading:
    base = ""
    if metric in ("speedup", "time_speedup"):
        metric, base, precisions, labels = _as_speedup(metric, pair, precisions, labels)
    stated = sorted(set(precisions))
    group = _group(stated[0] if stated else "", labels)
    if len(stated) > 1 or group is None:
        return replace(made, reason="several precisions or machines in one heading")
    if unit is not None and unit.scope:
        scope, unit = unit.scope, replace(unit, scope="")
    metric = _by_unit(metric, unit)
    if scope and (metric not in _SCOPED or (scope == "node" and metric in ("flops_per_second", "memory"))):
        return replace(made, reason=f"{metric} per {scope} is not known")
    metric = _scoped(f"{metric}_{quantile}" if quantile else metric, scope)
    kind, known = metric_kind(metric), unit_of(unit.name) if unit is not None else None
    if unit is not None and kind is not None and (known is None or known[0] != kind):
        return replace(made, reason=f"{metric} in {unit.name}")
    return replace(made, metric=metric, unit=unit, group=group, base=base)


def _unknown_unit(metric: str, extras: list[str]) -> str:
    """Return a text in parentheses that looks like a unit: it may hide a prefix, so that every figure is wrong."""
    ratio = metric_kind(metric) in (None, "ratio")
    strange = (
        text for text in extras if ("/" in text or not ratio) and not machine_of(text) and _UNIT_LIKE.fullmatch(text)
    )
    return next(strange, "")


def _by_unit(metric: str, unit: Unit | None) -> str:
    """Return the name of a metric whose unit tells more than its words, such as throughput in TFLOP/s."""
    if metric == "throughput" and unit is not None and counted(unit.name) == "FLOP":
        return "flops_per_second"
    if metric == "items_per_energy" and unit is not None:
        return f"{counted(unit.name)}_per_energy"
    return metric


def _as_speedup(
    metric: str, pair: tuple[str, str] | None, precisions: list[str], labels: list[str]
) -> tuple[str, str, list[str], list[str]]:
    """Return metric, base, precision and labels of a speed-up between two precisions, two machines, or in scaling."""
    over = "speedup" if metric == "speedup" else "time_speedup"
    if pair is not None:
        return f"{over}_over_precision", pair[0], [pair[1]], labels
    for label in labels:
        match = re.fullmatch(r"(?:vs\.?|over|relative to|compared to|against)\s+(.{1,40})", label, re.IGNORECASE)
        if match and machine_of(match[1]):
            return f"{over}_over_system", match[1].strip(), precisions, [other for other in labels if other != label]
        sides = [side.strip() for side in _FORWARD.split(label)]
        if len(sides) == 2 and all(machine_of(side) for side in sides):
            return f"{over}_over_system", sides[0], precisions, [sides[1], *(e for e in labels if e != label)]
    return metric, "", precisions, labels


def _group(precision: str, labels: list[str]) -> tuple[tuple[str, str], ...] | None:
    """Return the settings of a column's group; None if two labels claim the same setting."""
    group = {"precision": precision} if precision else {}
    options: list[str] = []
    for label in labels:
        machine = machine_of(label)
        if not machine:
            options.append(label.strip(" +-"))
        elif machine in group:
            return None
        else:
            group[machine] = label.strip()
    if options:
        group["options"] = ", ".join(options)
    return tuple(sorted(group.items()))


def _find_phrase(text: str) -> tuple[str, list[str], Unit | None]:
    """Return the part of a text that is a known phrase, the other parts as labels, and a unit among them."""
    whole = _simplify(text)
    if whole in _METRICS or whole in _SETTINGS:
        return whole, [], None
    parts = [part.strip() for part in _PARTS.split(text) if part.strip(" -–—:,+")]
    ending = re.fullmatch(r"(.+?) (?:in )?([^ ]{1,30})", parts[-1]) if parts else None
    if ending and unit_spelled(ending[2]):
        parts = [*parts[:-1], ending[1], ending[2]]
    phrase, labels, unit = "", list[str](), None
    for part in parts:
        plain = _simplify(part)
        if not phrase and (plain in _METRICS or plain in _SETTINGS):
            phrase = plain
        elif (spelled := unit_spelled(part)) is not None and unit is None:
            unit = spelled
        elif part.strip(" []").lower() not in ("", *spellings.HARMLESS):
            labels.append(part)
    if not phrase and len(parts) > 1 and (joined := _simplify(" ".join(parts))) in (*_METRICS, *_SETTINGS):
        return joined, [], None
    return phrase, labels, unit


def _take_quantile(text: str) -> tuple[str, str]:
    """Return the text without its percentile or average, and its name: `p99`, `mean`."""
    quantile = _QUANTILE.search(text)
    if quantile is not None:
        digits = quantile["p"] or quantile["percent"] or "99.9"
        return text[: quantile.start()] + " " + text[quantile.end() :], f"p{digits.replace('.', '_')}"
    aggregate = _AGGREGATED.search(text.lower())
    if aggregate is None:
        return text, ""
    return text[: aggregate.start()] + " " + text[aggregate.end() :], _AGGREGATE[aggregate[1]]


def _quantile_label(labels: list[str]) -> tuple[list[str], str]:
    """Return the labels without one that is a percentile, such as the 99% of `Latency - 99%`, and its name."""
    for label in labels:
        left, name = _take_quantile(label)
        if name and not left.strip():
            return [other for other in labels if other != label], name
    return labels, ""


def _pair_of(text: str) -> tuple[str, str] | None:
    """Return base and faster precision of `TF32 - mixed precision` or `FP16/FP32`; None if there are not two."""
    matches = list(_PRECISION.finditer(text))
    if len(matches) != 2:
        return None
    between = text[matches[0].end() : matches[1].start()]
    first, second = (_canonical(match[0]) for match in matches)
    if first == second:
        return None
    if _WIDTHS.get(first, 0) != _WIDTHS.get(second, 0) and (
        _FORWARD.fullmatch(between) or _BACKWARD.fullmatch(between)
    ):
        # Authors write "mixed to FP32" and "FP32 to mixed" for the same: the gain over the wider format.
        wider, narrower = sorted((first, second), key=lambda name: -_WIDTHS.get(name, 0))
        return wider, narrower
    if _FORWARD.fullmatch(between):
        return first, second
    return (second, first) if _BACKWARD.fullmatch(between) else None


def _canonical(text: str) -> str:
    plain = re.sub(r"[\s-]+", " ", text.lower())
    return spellings.PRECISIONS.get(plain) or spellings.PRECISIONS[plain.replace(" ", "")]


def _scoped(metric: str, scope: str) -> str:
    return f"{metric}_per_{scope}" if scope else metric


def _simplify(text: str) -> str:
    """Return a text as the phrases are written: lower case, one space, no punctuation at the ends or as a hyphen."""
    plain = re.sub(r"[\s\-–—]+", " ", text.lower()).strip(" .:,;-|+/[]")
    plain = _SLASH.sub(" / ", _ENDING.sub("", plain))
    if plain in _METRICS or plain in _SETTINGS:
        return plain
    return re.sub(r"[\s:,]+", " ", plain).strip().removeprefix("# ")


def _strip(text: str) -> str:
    text = re.sub(r"\s+", " ", text).strip(" -–—:,;/+&[]")
    return "" if text.lower() in ("and", "or", "with", "to", *spellings.HARMLESS) else text
