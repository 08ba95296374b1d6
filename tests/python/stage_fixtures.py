"""Writes tests/fixtures/stages: images with the pixels that Pillow reads and resizes, and tokenizers with the tokens that
Hugging Face's library gives. Needs `pip install pillow==13.0.0 tokenizers==0.23.2 numpy`; the tests need the files only.

    python tests/python/stage_fixtures.py tests/fixtures/stages
"""

import json
import sys
from pathlib import Path

import numpy
from PIL import Image
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

WORDS = """the quick brown fox jumps over the lazy dog while the small model waits for a larger one that is not sure
functions of a graph run on devices and the daemon keeps what lies between them in memory of its own
A tenant's code runs in a jail, it's theirs; we'll see what they've done, and I'm sure he'd say: 12345 tokens!""".split()

TEXTS = [
    "",
    " ",
    "the quick brown fox",
    "The Quick  Brown\tFox\n\njumps   over",
    "it's we'll they've I'm he'd 's",
    "numbers 12345 and 3.14, (brackets) -- dashes...",
    "café naïve Ærøskøbing Ünïcödé",
    "中文和English混合 text 日本語",
    "zero\u200bwidth\u00a0nbsp\ufeffbom",
    "emoji 👍🏽 and tabs\t\tend  ",
    "   leading spaces",
    "<s>special</s> <mask> x <mask>",
    "[CLS] inside [SEP][MASK] [UNK]",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "line\r\nline\r\n\r\n  line",
]


def tokenizer(name):
    corpus = [" ".join(WORDS)] * 3
    if name == "word_piece":
        made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer()
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        made.train_from_iterator(corpus, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special))
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        return made
    made = Tokenizer(models.BPE())
    special = ["<s>", "</s>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    if name == "gpt2":
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.train_from_iterator(corpus, trainer)
        made.post_processor = processors.ByteLevel(trim_offsets=False)
    elif name == "roberta":
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        made.train_from_iterator(corpus, trainer)
        made.add_special_tokens([AddedToken("<mask>", lstrip=True)])
        made.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    else:
        pattern = (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
            r"|\s+(?!\S)|\s+"
        )
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        made.normalizer = normalizers.NFC()
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        made.train_from_iterator(corpus, trainer)
    return made


def photo():
    height, width = 48, 72
    y, x = numpy.mgrid[0:height, 0:width].astype(numpy.float64)
    red = 255 * x / (width - 1)
    green = 127 + 100 * numpy.sin(x / 5) * numpy.cos(y / 7)
    blue = numpy.where((x - 40) ** 2 + (y - 20) ** 2 < 150, 220, 40 + 3 * y)
    return Image.fromarray(numpy.stack([red, green, blue], axis=2).clip(0, 255).astype(numpy.uint8))


def write_images(folder):
    image = photo()
    image.save(folder / "photo.png")
    small = image.resize((7, 5), Image.Resampling.BILINEAR)
    grey = small.convert("L")
    kinds = {
        "rgb": small,
        "rgba": small.convert("RGBA"),
        "grey": grey,
        "grey_alpha": grey.convert("LA"),
        "palette": small.quantize(9),
        "bits": grey.point(lambda value: 255 * (value > 99)).convert("1"),
    }
    for name, kind in kinds.items():
        if name.endswith("a"):
            kind.putalpha(128)
        kind.save(folder / f"{name}.png")
        (folder / f"{name}.rgb").write_bytes(Image.open(folder / f"{name}.png").convert("RGB").tobytes())
    deep = numpy.asarray(grey).astype(numpy.uint16) * 256 + 77
    Image.fromarray(deep).save(folder / "deep.png")
    image.save(folder / "photo.jpg", quality=92)
    image.save(folder / "progressive.jpg", quality=92, progressive=True, subsampling=0)
    for name in ["photo.jpg", "progressive.jpg"]:
        (folder / f"{name}.rgb").write_bytes(Image.open(folder / name).convert("RGB").tobytes())
    # As torchvision's Resize(36) and CenterCrop((32, 28)).
    shorter = image.resize((36 * 72 // 48, 36), Image.Resampling.BILINEAR)
    left, top = round((shorter.width - 28) / 2), round((shorter.height - 32) / 2)
    (folder / "cut.rgb").write_bytes(shorter.crop((left, top, left + 28, top + 32)).tobytes())
    for name, filter in [("bilinear", Image.Resampling.BILINEAR), ("nearest", Image.Resampling.NEAREST)]:
        (folder / f"{name}.rgb").write_bytes(image.resize((100, 20), filter).tobytes())


def main(folder):
    folder.mkdir(exist_ok=True)
    write_images(folder)
    for name in ["word_piece", "gpt2", "roberta", "llama"]:
        made = tokenizer(name)
        cases = [{"text": text, "ids": made.encode(text).ids} for text in TEXTS]
        whole = {"tokenizer": json.loads(made.to_str()), "cases": cases}
        (folder / f"{name}.json").write_text(json.dumps(whole, ensure_ascii=False, separators=(",", ":")) + "\n")


main(Path(sys.argv[1]))
