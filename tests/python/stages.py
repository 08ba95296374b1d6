"""What a client computes with numpy and ONNX Runtime from the image files of tests/fixtures/stages: decodes, resizes as Pillow
does, cuts out the centre, normalises, runs the model, and prints the scores of each image as JSON.

stages.py FIXTURES MODEL SHORTER SIZE

The pixels of photo.jpg were decoded by Pillow (tests/python/stage_fixtures.py); photo.png is decoded here.
"""

import json
import pathlib
import struct
import sys
import zlib

import numpy
import onnxruntime

MEAN = numpy.array([0.485, 0.456, 0.406], numpy.float32)
STD = numpy.array([0.229, 0.224, 0.225], numpy.float32)


def decode_png(path):
    """The pixels of a file with 8 bits per channel, RGB, not interlaced."""
    data, at, rows = path.read_bytes(), 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, *form = struct.unpack(">IIBBBBB", body)
            assert form == [8, 2, 0, 0, 0]
        elif kind == b"IDAT":
            rows += body
        at += length + 12
    rows = numpy.frombuffer(zlib.decompress(rows), numpy.uint8).reshape(height, 1 + 3 * width).astype(int)
    pixels = numpy.zeros((height + 1, width + 1, 3), int)
    for y in range(height):
        for x in range(width):
            left, up, corner = pixels[y + 1, x], pixels[y, x + 1], pixels[y, x]
            guess = left + up - corner
            away = [abs(guess - left), abs(guess - up), abs(guess - corner)]
            nearest = numpy.where(
                (away[0] <= away[1]) & (away[0] <= away[2]), left, numpy.where(away[1] <= away[2], up, corner)
            )
            before = [0 * left, left, up, (left + up) // 2, nearest][rows[y, 0]]
            pixels[y + 1, x + 1] = (rows[y, 1 + 3 * x : 4 + 3 * x] + before) % 256
    return pixels[1:, 1:].astype(numpy.uint8)


def resized(pixels, size, axis):
    """One side of an image with Pillow's bilinear filter, whose weights are integers, rounded to bytes."""
    pixels = numpy.moveaxis(pixels.astype(numpy.int64), axis, 0)
    scale = len(pixels) / size
    support = max(scale, 1.0)
    out = []
    for at in range(size):
        centre = (at + 0.5) * scale
        first, end = max(int(centre - support + 0.5), 0), min(int(centre + support + 0.5), len(pixels))
        weights = numpy.clip(1 - abs(numpy.arange(first, end) - centre + 0.5) / support, 0, None)
        weights = (0.5 + weights / weights.sum() * 2**22).astype(numpy.int64)
        out.append((numpy.tensordot(weights, pixels[first:end], 1) + 2**21) >> 22)
    return numpy.moveaxis(numpy.array(out).clip(0, 255).astype(numpy.uint8), 0, axis)


def main(fixtures, model, shorter, size):
    session = onnxruntime.InferenceSession(model)
    name = session.get_inputs()[0].name
    images = {
        "photo.png": decode_png(fixtures / "photo.png"),
        "photo.jpg": numpy.frombuffer((fixtures / "photo.jpg.rgb").read_bytes(), numpy.uint8).reshape(48, 72, 3),
    }
    scores = {}
    for file, pixels in images.items():
        height, width, _ = pixels.shape
        wide = shorter * max(height, width) // min(height, width)
        pixels = resized(pixels, wide if width > height else shorter, 1)
        pixels = resized(pixels, shorter if width > height else wide, 0)
        top, left = (round((pixels.shape[axis] - size) / 2) for axis in (0, 1))
        cut = pixels[top : top + size, left : left + size].astype(numpy.float32) / numpy.float32(255)
        x = ((cut - MEAN) / STD).transpose(2, 0, 1)[None]
        logits = session.run(None, {name: x})[0].astype(numpy.float64)
        powers = numpy.exp(logits - logits.max())
        scores[file] = (powers / powers.sum())[0].tolist()
    print(json.dumps(scores))


main(pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
