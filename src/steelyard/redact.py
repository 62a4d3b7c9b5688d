"""Replace what looks like a secret in texts that are recorded: people publish records, logs and reports.

Three things tell a secret: its own form (`ghp_...`), its place (`https://user:password@host`, an authorization
header), or the name it is given to (`password=...`). Digests, commits, identifiers and numbers are none. Every search
takes time in proportion to the text, whatever the text is: parts that repeat have a largest length.
"""

from __future__ import annotations

import base64
import binascii
import re
from functools import lru_cache, partial
from typing import Any, Final

MARK: Final = "[redacted]"
SHORT: Final = 300

# -- secrets with a form of their own: what must be in the text (in lower case), and the form

# As their makers spell them. Beginnings after which 16 or more letters, digits and characters of base64 follow.
_PREFIXES: Final = (
    "github_pat_", "glpat-", "gldt-", "glrt-", "glcbt-", "glptt-", "glft-", "glimt-", "glagent-", "glsoat-", "glffct-",
    "gloas-", "GR1348941", "api_org_", "sk-or-v1-", "sk-", "nvapi-", "gsk_", "xai-", "pplx-", "r8_", "rpa_", "lsv2_pt_",
    "lsv2_sk_",
    "wandb_v1_", "fw_", "xapp-", "pypi-AgE", "dckr_pat_", "dckr_oat_", "hvs.", "hvb.", "hvr.", "sk_live_", "sk_test_",
    "rk_live_", "rk_test_", "pk_live_", "pk_test_", "whsec_", "SG.", "dop_v1_", "doo_v1_", "dor_v1_", "shpat_",
    "shpca_", "shppa_", "shpss_", "ATATT3", "ATCTT3", "ATBB", "lin_api_", "ntn_", "figd_", "glsa_", "glc_", "NRAK-",
    "sntrys_", "sntryu_", "dp.pt.", "dp.st.", "dp.ct.", "dp.sa.", "PMAK-", "pul-", "rubygems_", "tskey-", "AKCp",
    "HRKU-", "pscale_tkn_", "pscale_pw_", "pscale_oauth_", "sbp_", "dt0c01.", "AGE-SECRET-KEY-1", "ops_eyJ", "GOCSPX-",
    "ya29.", "1//0", "xkeysib-", "shippo_live_", "shippo_test_", "npm_", "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_",
    "eyJ", "xoxa-", "xoxb-", "xoxe-", "xoxe.xoxp-", "xoxo-", "xoxp-", "xoxr-", "xoxs-", "key-", "sq0atp-", "sq0csp-",
    "amzn.mws.", "ico-", "pnu_", "rdme_", "tfp_", "p8e-", "CLOJARS_", "fm1a_", "fm1r_", "FLWSECK", "fio-u-",
    "duffel_live_", "duffel_test_", "xoxc-", "xoxd-", "tk-us-", "sm_aat_", "sm_pat_", "sm_sat_", "NRII-", "NRJS-",
    "fm2_", "fo1_", "sgp_", "EAAC", "EAAM", "ZXlK", "FLWPUBK", "pk.eyJ", "t1.", "AQVN", "pat.", "cmVmd", "ABSK",
    "sat.", "pcsk_", "jina_", "MUNGE:Aw", "CCIPAT_", "tgp_v1_", "csk-",
)  # fmt: skip
# Such a beginning is also that of ordinary names: what follows has 20 characters without a break.
_NAMES: Final = frozenset({
    "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "npm_", "gsk_", "rpa_", "pnu_", "sbp_", "ntn_", "tfp_", "xai-",
    "whsec_", "fm2_", "fo1_", "sgp_", "rdme_", "rubygems_", "api_org_", "glsa_", "pcsk_", "jina_",
})  # fmt: skip
# Or of ordinary words: what follows has 12 without a break, and both cases and digits, or is a long hexadecimal.
_COMMON: Final = frozenset({
    "sk-", "key-", "fw_", "r8_", "AKCp", "ATBB", "SG.", "ico-", "glc_", "eyJ", "cmVmd", "ABSK", "sat.", "pul-", "1//0",
    "EAAC", "EAAM", "ZXlK", "t1.", "AQVN", "pat.", "csk-",
})  # fmt: skip
# In base64 a slash is part of the secret, and not the end of a folder's name.
_MORE: Final = dict.fromkeys(("glc_", "sntrys_", "fm1a_", "fm1r_", "fm2_", "fo1_", "whsec_", "ABSK", "MUNGE:Aw"), "+/")
RUN: Final = 12
NAME_RUN: Final = 20
SHORTEST: Final = 6
NAME: Final = 60
LONG: Final = 16

# A secret starts where no word goes on: also after an escaped character, as in a text that Python or JSON has quoted.
_NEW_WORD: Final = "(?<![a-z0-9])"
_START: Final = (
    rf"(?:{_NEW_WORD}|(?<=\\[abefnrtv])|(?<=%[0-9a-f][0-9a-f])|(?<=\\x[0-9a-f][0-9a-f])"
    r"|(?<=\\u00[0-9a-f][0-9a-f]))"
)
# Colours of a terminal are no part of what they colour.
_COLOUR: Final = r"(?:\x1b|\\x1b|\\u001b|\\033|\\e)\[[0-9;]{0,20}m"
_ESCAPED: Final = r"\\[abefnrtv]"

# What must be in the text, where such a secret starts (both in lower case), and its form.
_FORMS: Final = (
    ("akia", r"(?<![a-z0-9])akia", r"AKIA[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("asia", r"(?<![a-z0-9])asia", r"ASIA[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("abia", r"(?<![a-z0-9])abia", r"ABIA[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("acca", r"(?<![a-z0-9])acca", r"ACCA[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("ltai", r"(?<![a-z0-9])ltai", r"LTAI[A-Za-z0-9]{17,24}(?![A-Za-z0-9])"),
    ("ez", r"(?<![a-z0-9])ez[at]k", r"EZ[AT]K[A-Za-z0-9]{54}"),
    ("v1.0-", r"(?<![a-z0-9])v1\.0-", r"v1\.0-[a-f0-9]{24}-[a-f0-9]{100,200}"),
    ("aiza", r"(?<![a-z0-9])aiza", r"AIza[A-Za-z0-9_-]{35}"),
    ("q~", r"(?<![a-z0-9])[a-z0-9_~.]{3}[0-9]q~", r".{6}[A-Za-z0-9_~.-]{31,34}"),
    ("hooks.slack.com/", r"(?<=hooks\.slack\.com/)", r"(?:services|workflows|triggers)/[A-Za-z0-9+/]{20,200}"),
    ("/api/webhooks/", r"(?<=/api/webhooks/)", r"[0-9]{10,25}/[A-Za-z0-9_-]{40,100}"),
    (".webhook.office.com/", r"(?<=\.webhook\.office\.com/)", r"[A-Za-z0-9@/_-]{40,400}"),
    ("dapi", r"(?<![a-z0-9])dapi", r"dapi[a-f0-9]{32}(?:-[0-9]{1,2})?(?![A-Za-z0-9])"),
    (":aa", r"(?:(?<![a-z0-9])|(?<=/bot))[0-9]{8,10}:aa", r"[0-9]{8,10}:AA[A-Za-z0-9_-]{33}(?![A-Za-z0-9])"),
    (
        ".",
        r"(?<![a-z0-9])[mno][a-z0-9_-]{23,27}\.[a-z0-9_-]{6}\.",
        r"[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}(?![A-Za-z0-9])",
    ),
    ("-us", r"(?<![a-z0-9])[a-f0-9]{32}-us[0-9]", r"[a-f0-9]{32}-us[0-9]{1,2}(?![A-Za-z0-9])"),
    ("sk", r"(?<![a-z0-9])sk[a-f0-9]", r"SK[A-Fa-f0-9]{32}(?![A-Za-z0-9])"),
    (".atlasv1.", r"(?<![a-z0-9])[a-z0-9]{14}\.atlasv1\.", r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{40,100}"),
    ("s.", r"(?<![a-z0-9.-])s\.", r"s\.(?=(?:[A-Za-z]{0,24}[0-9]){3})[A-Za-z0-9]{24}(?![A-Za-z0-9.])"),
    ("sha256~", r"sha256~", r"sha256~[A-Za-z0-9_-]{43}"),
    ("_mmk", r"(?<![a-z0-9])[a-z0-9]{6}_[a-z0-9]{29}_mmk", r".{40}"),
    ("api-", r"(?<![a-z0-9])api-", r"API-[A-Z0-9]{26}(?![A-Za-z0-9])"),
    ("pat", r"(?<![a-z0-9])pat[a-z0-9]{14}\.", r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}"),
    ("ls0tls1crudj", r"(?<![a-z0-9])ls0tls1crudj", r"LS0tLS1CRUdJ[A-Za-z0-9+/=]{40,20000}"),
    ("a3-", r"(?<![a-z0-9])a3-", r"A3-[A-Z0-9]{6}-[A-Z0-9]{5,11}-[A-Z0-9-]{11,30}"),
)

# -- secrets by their place, searched for in lower case; the group is the secret

# Credentials of an address; `ssh://git@host` has none.
_ADDRESS: Final = r"""(?::\\?/\\?/)([^\s/?#"'<>]{1,4000})@(?!sha(?:256|512):)"""
# A password of base64 has slashes; a port is none, and nor is the user `git` of `git@host:path`.
_SLASHES: Final = r"""://([^\s/?#"'<>:@[]{0,200}:(?![0-9]{1,5}[/?#]|[{$<])[^\s"'<>@]{1,100})@(?!sha(?:256|512):)"""
_QUOTED_ADDRESS: Final = r"%3a%2f%2f((?:[^\s/?#\"'<>&@%]|%(?!40|2f)){1,400})%40"
_PROXY: Final = r"_proxy[\"']?(?:[ \t]{0,4}[:=])?[ \t]{0,4}[\"']?([^\s/\"':@]{1,100}:[^\s\"'@]{1,100})@"
_HEADER: Final = (
    r"(?:authorization|cookie2?)\\?[\"']?[ \t]{0,4}[:=][ \t]{0,4}(?:[bfru]{0,2}\\?[\"'])?"
    r"((?:[ ,][a-z_-]{2,20}=\\?\"[^\r\n\"\\]{0,1000}\\?\"|[^\r\n\"'\\]|\\(?![\"'nr])){1,4000})"
)
_SCHEME: Final = r"(?<![a-z])(?:bearer|basic)[ \t]{1,4}([a-z0-9._~+/=-]{3,4000})"
_FORMAT: Final = r"(?i)(?:(?:bearer|basic|token)[ \t]{1,4})?(?:\{[^{}]*\}|<[^<>]*>|\$\{?\w+\}?|%\(?\w*\)?s)"
_QUERY: Final = (
    r"[?&](?:x-(?:amz|goog)-(?:signature|credential|security-token)|sig|signature|auth|code|awsaccesskeyid"
    r"|[a-z_-]{0,20}(?:key|secret|token|password|passwd))=([^\s&#\"'<>]{1,4000})"
)
_USER: Final = (
    r"(?<![\w-])(?:-u|--user|--proxy-user)(?:[ \t]{1,4}|=)"
    r"(?:[a-z][\w.@-]{0,100}:[\"']?|\"[^\s\"':]{0,100}:|'[^\s\"':]{0,100}:)([^\s\"']{1,500})"
)
_LOGIN: Final = (
    r"(?:(?:login|account|machine)[ \t\n]{1,9}\S{1,200}[ \t\n]{1,9}password[ \t\n]{1,9}"
    r"|sshpass[ \t]{1,9}-p[ \t]{0,9}"
    r"|(?:docker|podman|nerdctl|helm|registry|skopeo|buildah|oras|az)[ \t]login[ \t]"
    r"[^\r\n;|&]{0,120}?[ \t]-p[ \t=]{0,4})[\"']?([^\s\"']{1,500})"
)
# Commands that set a variable: its name and value are words.
_SET: Final = (
    r"(?:setenv|set -x|configure set|config set|remote modify(?: --\w{1,20})?[ \t]{1,4}\S{1,100})[ \t]{1,4}"
    r"([\w.-]{1,100})[ \t]{1,4}[\"']?([^\s\"']{1,2000})"
)
# A variable of a container, or an attribute: `name: ..., value: ...`.
_PAIR: Final = (
    r"(?<![a-z])(?:name|key)\\?[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\?[\"']?([\w.-]{1,100})\\?[\"']?,?"
    r"(?:\s{1,40}|\\n[ ]{0,40})?\\?[\"']?value\\?[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\?[\"']?([^\r\n\"'\\,}>]{1,4000})"
)
_HEX: Final = rf"{_NEW_WORD}([0-9a-f]{{40}})(?![a-z0-9])"

# -- secrets by the name they are given to

# A name ends with one of these. A value after a strong word is a secret whatever it looks like.
_WORDS: Final = (
    r"pass(?:w(?:or)?ds?|wort|[_-]?phrase|code)?|pwd?|secrets?|key(?:[_-]?id)?|credentials?|token|jwt|pat|auth"
    r"|sig(?:nature)?|session|bearer|pin"
)
_STRONG: Final = frozenset(
    {
        "password",
        "passwd",
        "passwords",
        "passwds",
        "passwort",
        "passphrase",
        "passcode",
        "secret",
        "credential",
        "credentials",
    }
)
# `key` and `token` are strong after one of these.
_KINDS: Final = frozenset({
    "api", "access", "private", "secret", "signing", "encryption", "account", "auth", "license", "shared", "master",
    "storage", "ssh", "deploy",
    "subscription", "app", "service", "client", "consumer", "refresh", "bearer", "identity",
})  # fmt: skip
# Before `token` and the like: words of language models, counts and questions.
_HARMLESS: Final = frozenset({
    "eos", "bos", "pad", "unk", "mask", "sep", "cls", "special", "image", "num", "max", "min", "per", "n",
    "no", "has", "is", "next", "prev", "last", "first", "stop", "end", "start", "new", "sub", "unexpected", "invalid",
    "single", "each", "every", "forward", "backward", "use", "cache",
})  # fmt: skip
_GIVEN: Final = (
    rf"(?P<word>{_WORDS})(?:[_-]?[0-9]{{1,2}})?"
    r"(?P<joint>\\{0,3}[\"'`]{0,2}\]?[ \t]{0,40}(?:=>|:[ \t]{0,4}(?:optional\[)?(?:str|bytes)\]?[ \t]{0,4}="
    r"|[:?!.+|]{0,3}={1,3}|:|>)[ \t]{0,40}|[ \t]{1,40}(?=[\"'])|\\?[\"'][ \t]{0,4},[ \t]{0,4}(?=\\?[\"']))"
    r"(?:[bfru]{1,2}(?=[\"']))?(?:(?:\"\")?\\{0,3}\"(?P<double>(?:[^\"\\\n]|\\[^\"\n]){1,20000})\\{0,3}\""
    r"|(?:'')?\\{0,3}'(?P<single>(?:[^'\\\n]|\\[^'\n]){1,20000})\\{0,3}'"
    r"|[\"'`]?(?P<bare>[^\s,;&\"'`<>)}|]{1,20000}))"
)
_OPTION: Final = (
    rf"(?<![\w-])(--?(?:[a-z0-9]{{1,20}}[_-]){{0,3}}(?:{_WORDS}))[ \t]{{1,4}}[\"']?([^\s\"'-][^\s\"']{{0,500}})"
)
_NO_VALUE: Final = (
    r"(?i)none|null|nil|true|false|yes|no|on|off|unset|empty|required|missing|invalid|incorrect|wrong|expired|denied"
    r"|needed|unknown|not|is|the|an?|must|use|see|please|when|should|cannot|str|string|bytes|int|bool|any"
    r"|\*+|x{3,}|\.+|<[^>]*>?|\$\{?[\w.]+\}?|\$\(.*|%\(?\w+\)?s?|\[redacted.*|redacted|hidden"
)
# In a line of a program, as tracebacks show it.
_CODE: Final = (
    r"(?i)[\[({].*|(?:self|os|args|kwargs|cfg|config|settings|options|request)\..*|[a-z_.]{1,80}[(\[].*"
    r"|[a-z]{1,40}\{[0-9a-f]{6,8}"
)
_BLOCK: Final = r"-----begin [a-z0-9 ]{0,40}private key[a-z ]{0,10}-----"
_BLOCK_END: Final = r"-----end [a-z0-9 ]{0,40}private key[a-z ]{0,10}-----"


def redact(text: str) -> tuple[str, int]:
    """Return the text with `[redacted]` for each secret, and how many there were."""
    # The records of a campaign have most of their short texts in common.
    return _redact_short(text) if len(text) <= SHORT else _redact(text)


@lru_cache(maxsize=4096)
def _redact_short(text: str) -> tuple[str, int]:
    return _redact(text)


def _redact(text: str) -> tuple[str, int]:
    low, count = _lower(text), 0
    for needed, pattern, judge in _SEARCHES:
        if any(word in low for word in needed):
            new = _replaced(pattern, judge, text, low)
            if new:
                count += len(new) // 2
                text = "".join(new)
                low = _lower(text)
    return text, count


def clean(data: Any) -> tuple[Any, int]:
    """Return data of a JSON file without secrets in its texts, and how many there were."""
    if isinstance(data, str):
        return redact(data)
    if isinstance(data, dict):
        named = [(name, str(name), value) for name, value in data.items()]
    elif isinstance(data, (list, tuple)):
        # In a command line an option and its value are two words.
        options = ["", *(item if isinstance(item, str) and item.startswith("-") else "" for item in data[:-1])]
        named = [(number, options[number], value) for number, value in enumerate(data)]
    else:
        return data, 0
    parts = {key: _clean_named(name, value) for key, name, value in named}
    count = sum(secrets for _, secrets in parts.values())
    values = {key: value for key, (value, _) in parts.items()}
    return (values if isinstance(data, dict) else list(values.values())), count


def _clean_named(name: str, value: Any) -> tuple[Any, int]:
    secret = isinstance(value, str) and value[:1] != "-" and value != MARK and names_secret(name, value)
    if secret:
        return MARK, 1
    if isinstance(value, dict) and isinstance(value.get("name"), str) and isinstance(value.get("value"), str):
        # A variable, as in the manifest of a pod.
        told, count = _clean_named(value["name"], value["value"])
        rest, more = clean({**value, "value": None})
        return {**rest, "value": told}, count + more
    return clean(value)


def looks_secret(name: str, value: str) -> bool:
    """Whether the value of a variable is a secret, by its name or by what it looks like."""
    return names_secret(name, value) or redact(value)[1] > 0


def names_secret(name: str, value: str) -> bool:
    """Whether a name says that this value is a secret. A path to one is none."""
    words = [word for word in _split(name[-200:]) if not word.isdigit()]
    if not words or not value or value.startswith(("/", "./", "~/")) or re.fullmatch(_NO_VALUE, value):
        return False
    last = words[-1].lower()
    option = name.startswith("-") and not value.isdigit()
    if last in ("pass", "pw") or (option and last in ("token", "auth")):
        return True
    glued = re.search(rf"(?:{_WORDS})\Z", last)
    if glued is None:
        return False
    if glued.start():
        words = _name(last[: glued.start()], glued[0])
    return bool(words) and _says_secret(words, value)


def _split(name: str) -> list[str]:
    """Return the words of a name such as API_KEY, api-key or apiKey."""
    return re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", name)


def _says_secret(words: list[str], value: str) -> bool:
    """Whether a name, of which these are the words, says that a value is a secret."""
    last, before = words[-1].lower(), words[-2].lower() if len(words) > 1 else ""
    if last in _STRONG or (before in _KINDS and last in ("key", "token")) or last in ("apikey", "authtoken"):
        return True
    if before in _HARMLESS or value.isdigit():
        # A number is a count or a place in a table.
        return False
    named = words[-1].isupper() and words[-1] not in ("PWD", "KEY")
    return (named or _random(value)) and (last != "key" or words[-1].isupper())


def _random(value: str) -> bool:
    """Whether a text has letters and digits, or both cases inside one word, as no word of a language does."""
    if len(value) < SHORTEST or value.startswith(("/", "./")):
        return False
    letters, digits = re.search("[A-Za-z]", value), re.search("[0-9]", value)
    return letters is not None and (digits is not None or (len(value) >= LONG and _both_cases(value)))


def _both_cases(value: str) -> bool:
    return value.isalpha() and not (value.islower() or value.isupper())


# -- the searches


def _lower(text: str) -> str:
    """Return the text in lower case and without colours, with the same length."""
    low = text.lower()
    low = low if len(low) == len(text) else text.encode("ascii", "replace").decode("ascii").lower()
    return re.sub(_COLOUR, lambda found: " " * len(found[0]), low) if "[" in low else low


def _replaced(pattern: str, judge: Any, text: str, low: str) -> list[str]:
    """Return the parts of the text with the mark between them; none if there is nothing to replace."""
    parts, place = [], 0
    for match in re.finditer(pattern, low):
        span = judge(match, text) if match.start() >= place else None
        if span is not None and not text.startswith(MARK, span[0]):
            parts += [text[place : span[0]], MARK]
            place = span[1]
    return [*parts, text[place:]] if parts else []


def _group(match: re.Match[str], text: str) -> tuple[int, int] | None:
    """The first group is a secret, unless it says that there is none."""
    return None if re.fullmatch(_NO_VALUE, text[slice(*match.span(1))]) else match.span(1)


def _form(form: re.Pattern[str] | str, match: re.Match[str], text: str) -> tuple[int, int] | None:
    """A secret with a form of its own around the place that was found."""
    whole = re.compile(form).match(text, match.start())
    return whole.span() if whole and _is_private(whole[0]) else None


def _is_private(value: str) -> bool:
    """Whether a text is not a certificate or public key in base64, as a kubeconfig has it beside the private one."""
    if not value.startswith("LS0tLS1CRUdJ"):
        return True
    try:
        # As much of the first line as says what it is.
        return b"PRIVATE KEY" in base64.b64decode(value[:48])
    except binascii.Error:
        return True


def _prefixed(prefix: str, match: re.Match[str], text: str) -> tuple[int, int] | None:
    rest = text[match.start() + len(prefix) : match.end()]
    if not text.startswith(prefix, match.start()):
        return None
    run = max(map(len, re.split("[_.=+/-]", rest)))
    if prefix in _COMMON:
        mixed = not rest.islower() and not rest.isupper() and re.search("[0-9]", rest)
        fits = run >= RUN and bool(mixed or re.fullmatch(r"[0-9a-f-]{30,}", rest))
    elif prefix in _NAMES:
        fits = run >= NAME_RUN
    else:
        fits = run >= LONG or _random(rest) or not (rest.islower() or rest.isupper())
    return match.span() if fits else None


def _block(match: re.Match[str], text: str) -> tuple[int, int] | None:
    """A private key, also one whose end is missing."""
    end = re.compile(_BLOCK_END, re.IGNORECASE).search(text, match.end())
    return match.start(), end.end() if end else len(text)


def _address(match: re.Match[str], text: str) -> tuple[int, int] | None:
    web = text[max(0, match.start() - 5) : match.start()].lower().endswith(("http", "https"))
    return match.span(1) if web or ":" in match[1] else None


def _header(match: re.Match[str], text: str) -> tuple[int, int] | None:
    """The value of a header, unless a program is to put it there."""
    return None if re.fullmatch(_FORMAT, text[slice(*match.span(1))].strip()) else _group(match, text)


def _scheme(match: re.Match[str], text: str) -> tuple[int, int] | None:
    value = text[slice(*match.span(1))]
    if match[0].startswith("bearer"):
        return None if re.match(r"(?i)(?:tokens?|auth\w*|scheme|header|of|is|or|and|for)\b", value) else match.span(1)
    try:
        return match.span(1) if b":" in base64.b64decode(value, validate=True) else None
    except (binascii.Error, ValueError):
        return None


def _wandb(match: re.Match[str], text: str) -> tuple[int, int] | None:
    return match.span(1) if "wandb" in text[max(0, match.start() - 80) : match.start()].lower() else None


def _user(match: re.Match[str], text: str) -> tuple[int, int] | None:
    return None if match[1].isdigit() else _group(match, text)


def _given(match: re.Match[str], text: str) -> tuple[int, int] | None:
    kind = "double" if match["double"] else "single" if match["single"] else "bare"
    first, last = match.span(kind)
    start, end = match.span("word")
    before = re.sub(f"{_COLOUR}|{_ESCAPED}", " ", text[max(0, start - NAME) : start])
    secret = _is_secret(before, text[start:end], match["joint"], text[first:last], bare=kind == "bare")
    return (first, last) if secret else None


# Long texts repeat themselves.
@lru_cache(maxsize=1000)
def _is_secret(before: str, word: str, joint: str, value: str, *, bare: bool) -> bool:
    """Whether a value is a secret; `before` and `word`: the text before it, `joint`: what is between."""
    if re.fullmatch(_NO_VALUE, value) or not value.strip() or (bare and re.fullmatch(_CODE, value)):
        return False
    words = _name(before, word.replace("_", "").replace("-", ""))
    if not words or value == words[-1] or (joint.strip() == ">" and words[-1].lower() not in _STRONG):
        return False
    if "," in joint and not (_random(value) and re.search("[0-9]", value)):
        # Two words of a list.
        return False
    return _says_secret(words, value)


def _name(before: str, word: str) -> list[str]:
    """Return the words of the name that a value is given to; none if it only ends like one: `monkey`, `compass`."""
    capital = word[0].isupper() and (before[-1:].islower() or word[1:].islower())
    if before and before[-1].isalnum() and not capital:
        glued = re.search(r"[A-Za-z]+\Z", before)
        kind = glued[0].lower() if glued else ""
        if word.lower() not in _STRONG and kind not in _KINDS:
            return []
        return [kind, word]
    # "API key: ..." is one name; other words before a space are not part of it.
    name = re.search(r"(?:(?i:api|access|secret|private|license) )\Z|[A-Za-z0-9_.-]+\Z", before)
    return [*(_split(name[0]) if name else []), "key" if word.lower() == "keyid" else word]


def _option(match: re.Match[str], text: str) -> tuple[int, int] | None:
    name, value = text[slice(*match.span(1))], text[slice(*match.span(2))]
    return match.span(2) if names_secret(name, value) else None


def _beginning(prefix: str) -> str:
    # The fixed text comes first: it is found faster than its start.
    low = re.escape(prefix.lower())
    return rf"{low}(?<={_START}{low})[a-z0-9_.={_MORE.get(prefix, '')}-]{{16,16000}}"


def _searches() -> list[tuple[tuple[str, ...], str, Any]]:
    """Return the searches: words of which a text must have one, what is searched for, and who judges what is found."""
    words = (
        "pass",
        "secret",
        "key",
        "credential",
        "token",
        "jwt",
        "pat",
        "auth",
        "pw",
        "sig",
        "session",
        "bearer",
        "pin",
    )
    return [
        (("private key",), _BLOCK, _block),
        *(((needed,), start.replace(_NEW_WORD, _START), partial(_form, form)) for needed, start, form in _FORMS),
        *(((prefix.lower(),), _beginning(prefix), partial(_prefixed, prefix)) for prefix in _PREFIXES),
        (("wandb",), _HEX.replace(_NEW_WORD, _START), _wandb),
        (("://", r":\/\/"), _ADDRESS, _address),
        (("://",), _SLASHES, _group),
        (("%3a%2f%2f",), _QUOTED_ADDRESS, _group),
        (("_proxy",), _PROXY, _group),
        (("authorization", "cookie"), _HEADER, _header),
        (("bearer", "basic"), _SCHEME, _scheme),
        (("?", "&"), _QUERY, _group),
        (("-u", "--proxy-user"), _USER, _user),
        (("login", "sshpass"), _LOGIN, _group),
        (words, _SET, _option),
        (("value",), _PAIR, _option),
        (words, _GIVEN, _given),
        (words, _OPTION, _option),
    ]


_SEARCHES: Final = _searches()
