"""Untrusted pictures: decoded within limits, cropped, and drawn for small data sets."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.data.form import begins_like, read_whole
from steelyard.errors import DamagedDataError, InputError, Problem
from steelyard.extras import install_line

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray
    from PIL.Image import Image as Picture

# 8192 x 8192: above what cameras of training sets give. Pillow keeps 4 bytes a pixel, so that one picture takes at most
# 256 MiB, in each of the loader's processes.
PIXEL_LIMIT = 64 << 20
# A picture within the limit on pixels, compressed ever so little, is smaller.
FILE_LIMIT_BYTES = 64 << 20
FORMATS = ("JPEG", "PNG")

# Random crops as Szegedy et al. (2014, arXiv:1409.4842) train and torchvision repeats: share of the area, and width to
# height. Evaluation looks at the middle 224 of 256 pixels.
SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
MIDDLE = 224 / 256
# Tries for a random crop of a narrow picture before the middle is used.
DRAWS = 10

# Colours of classes in made pictures: 5 levels of red, green and blue, far enough apart for noise not to mix them.
LEVELS = (40, 85, 130, 175, 220)
COLOURS = len(LEVELS) ** 3
# Coprime to the number of colours: neighbouring classes get colours that are far apart, and no two the same.
COLOUR_STRIDE = 37
NOISE = 40


def pillow() -> ModuleType:
    """Import Pillow's Image module, only when pictures are read."""
    try:
        from PIL import Image
    except ImportError:
        raise InputError("reading pictures needs Pillow", next_step=install_line("images")) from None
    return Image


def decode(source: bytes | Path, name: str | None = None, limit: int = PIXEL_LIMIT) -> Picture:
    """Decode a JPEG or PNG to RGB; `name` stands for the bytes in errors."""
    picture = load(source, name, limit)
    if picture.mode == "RGB":
        return picture
    if picture.mode.startswith("I"):
        # 16 bits a pixel, of which Pillow would cut off all above 255 instead of the lowest 8.
        high = np.clip(np.asarray(picture).astype(np.int32) >> 8, 0, 255).astype(np.uint8)
        return _from_array(high).convert("RGB")
    if picture.mode == "P" and "transparency" in picture.info:
        # Pillow warns where a palette with transparency loses it in one step.
        picture = picture.convert("RGBA")
    return picture.convert("RGB")


def load(source: bytes | Path, name: str | None = None, limit: int = PIXEL_LIMIT) -> Picture:
    """Decode a JPEG or PNG unchanged, such as a mask of class numbers; no file is kept open."""
    image = pillow()
    name = name or (str(source) if isinstance(source, Path) else "the picture")
    data = read_whole(source, FILE_LIMIT_BYTES) if isinstance(source, Path) else source
    if len(data) > FILE_LIMIT_BYTES:
        raise DamagedDataError(f"{name} has {len(data):,} bytes; pictures of at most {FILE_LIMIT_BYTES:,} are read")
    try:
        # Reads the header only.
        picture: Picture = image.open(io.BytesIO(data), formats=FORMATS)
    except (image.DecompressionBombError, image.DecompressionBombWarning):
        raise _too_large(name, "far more", limit) from None
    except Exception as error:  # noqa: BLE001 -- Pillow has no common exception for a header it cannot read
        raise _damaged(name, data, error) from None
    width, height = picture.size
    if width * height > limit:
        raise _too_large(name, f"{width} x {height}", limit)
    try:
        picture.load()
    except Exception as error:  # noqa: BLE001 -- nor for data: OSError, SyntaxError, ValueError, struct.error, zlib.error
        raise _damaged(name, data, error) from None
    return picture


def _damaged(name: str, data: bytes, error: Exception) -> DamagedDataError:
    begins = begins_like(data)
    if begins.endswith(("JPEG picture", "PNG picture")):
        said = str(error).partition("<_io")[0].strip() or type(error).__name__
        return DamagedDataError(f"{name}: a damaged or truncated {begins.split()[-2]}: {said}")
    return DamagedDataError(f"{name} is neither JPEG nor PNG: it {begins}")


def _too_large(name: str, pixels: str, limit: int) -> DamagedDataError:
    return DamagedDataError(f"{name}: its header says {pixels} pixels; at most {limit:,} are decoded")


def _from_array(array: NDArray[np.uint8]) -> Picture:
    picture: Picture = pillow().fromarray(np.ascontiguousarray(array))
    return picture


def _rgb(picture: Picture | NDArray[np.uint8]) -> Picture:
    if isinstance(picture, np.ndarray):
        return _from_array(picture.squeeze(2) if picture.shape[2:] == (1,) else picture).convert("RGB")
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def training_crop(picture: Picture | NDArray[np.uint8], size: int, source: np.random.Generator) -> NDArray[np.uint8]:
    """Return a random crop, resized to size x size x 3 and mirrored in half of all cases."""
    whole = _rgb(picture)
    cut = _resized(whole, size, _random_box(*whole.size, source))
    return np.ascontiguousarray(cut[:, ::-1]) if source.random() < 0.5 else cut


def evaluation_crop(picture: Picture | NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """The middle of the picture as size x size x 3.

    The same as bringing the short side to size * 256 / 224 and cutting out the middle, but in one step.
    """
    whole = _rgb(picture)
    width, height = whole.size
    half = min(width, height) * MIDDLE / 2
    return _resized(whole, size, (width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half))


def _resized(picture: Picture, size: int, box: tuple[float, float, float, float]) -> NDArray[np.uint8]:
    # One pass: the crop itself is never made.
    return np.array(picture.resize((size, size), resample=pillow().Resampling.BILINEAR, box=box), dtype=np.uint8)


def _random_box(width: int, height: int, source: np.random.Generator) -> tuple[int, int, int, int]:
    for _ in range(DRAWS):
        area = width * height * source.uniform(*SCALE)
        ratio = math.exp(source.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = int(source.integers(width - wide + 1)), int(source.integers(height - high + 1))
            return left, top, left + wide, top + high
    # Too narrow: as much of the middle as the ratios allow.
    wide = min(width, max(1, round(height * RATIO[1])))
    high = min(height, max(1, round(width / RATIO[0])))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


def draw(label: int, height: int, width: int, source: np.random.Generator) -> NDArray[np.uint8]:
    """A picture of a class: its colour, stripes as wide as the class has them, and noise.

    Any part of it shows the colour, so that a model learns the class from random crops.
    """
    place = label * COLOUR_STRIDE % COLOURS
    colour = np.array([LEVELS[place // 25], LEVELS[place // 5 % 5], LEVELS[place % 5]], dtype=np.int16)
    period = 4 + label % 7
    rows = (np.arange(height) + int(source.integers(period))) % period < period / 2
    columns = (np.arange(width) + int(source.integers(period))) % period < period / 2
    stripes = rows[:, None] ^ (columns[None, :] if label % 2 else np.zeros((1, width), dtype=bool))
    noise = source.integers(-NOISE, NOISE, (height, width, 3), dtype=np.int16)
    drawn: NDArray[np.int16] = colour + noise + np.where(stripes, 12, -12).astype(np.int16)[..., None]
    return np.clip(drawn, 0, 255).astype(np.uint8)


def encode(array: NDArray[np.uint8], form: str = "JPEG") -> bytes:
    """Return the bytes of a JPEG or PNG file."""
    held = io.BytesIO()
    options: dict[str, Any] = {"quality": 90} if form == "JPEG" else {}
    _from_array(array).save(held, form, **options)
    return held.getvalue()


def classes_for(samples: int, most: int) -> int:
    """How many classes a made data set has: 50 samples each, at least 2 classes, at most those of the real one."""
    if samples < 2:
        raise InputError(
            "a small data set needs at least two classes", problems=(Problem("samples", f"is {samples}", "2"),)
        )
    return min(most, max(2, samples // 50))


def evaluation_samples(samples: int, classes: int) -> int:
    """Return a quarter of the training samples, but at least one per class."""
    return max(samples // 4, classes)
