"""Writes random sets of rectangles with the number of bins that rectpack 0.2.2 needs for them.

python rectpack_sets.py > runtime/core/tests/suite/packing/rectpack.txt

Each line: bins, then the rectangles as WIDTHxHEIGHT in bins of 100 x 100. Without rotation; with
rectpack's defaults (maximal rectangles by short side, largest area first, best bin).
"""

import random

import rectpack


def bins(rectangles):
    packer = rectpack.newPacker(rotation=False)
    for width, height in rectangles:
        packer.add_rect(width, height)
    for _ in range(len(rectangles)):
        packer.add_bin(100, 100)
    packer.pack()
    return len(packer)


def main():
    draw = random.Random(7)
    print("# Written by tests/python/rectpack_sets.py: bins, and rectangles.")
    for _ in range(1000):
        largest = draw.choice([40, 60, 90])
        count = draw.randint(3, 14)
        rectangles = [(draw.randint(1, largest), draw.randint(1, largest)) for _ in range(count)]
        print(bins(rectangles), *(f"{width}x{height}" for width, height in rectangles))


main()
