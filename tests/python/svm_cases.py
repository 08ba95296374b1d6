#!/usr/bin/env python3
"""Cases of support vector machines, with the results of ONNX Runtime: kernels, votes, scores and probabilities of classes, regression, and
KServe's iris example as skl2onnx exports it.

svm_cases.py OUT     writes OUT/<case>/model.onnx and OUT/<case>/test_data_set_0/{input,output}_<i>.pb

The result of ZipMap, a list of maps, is written as the tensor of its scores.
"""

import pathlib
import sys

import numpy as np
import onnx
import onnxruntime as ort
from string_cases import COLORS, ML, node, proto, rows, write

FEATURES = 4
# gamma, coef0, degree
PARAMETERS = [0.3, 0.2, 3.0]
SKLEARN = pathlib.Path(__file__).parent.parent / "fixtures/sklearn"
OPEN = {"x": ["N", FEATURES]}


def classifier(classes, per_class, kernel="RBF", transform="NONE", probabilities=False, seed=7, **labels):
    random = np.random.default_rng(seed)
    numbers = lambda count: random.standard_normal(count).tolist()
    count, pairs = sum(per_class), classes * (classes - 1) // 2
    attributes = {"coefficients": numbers((classes - 1) * count), "support_vectors": numbers(count * FEATURES), "rho": numbers(pairs)}
    if probabilities:
        attributes |= {"prob_a": (-2 - random.random(pairs)).tolist(), "prob_b": numbers(pairs)}
    labels = labels or {"classlabels_ints": [10 + label for label in range(classes)]}
    return node(
        "SVMClassifier", ["x"], ["label", "scores"], ML, kernel_type=kernel, kernel_params=PARAMETERS, post_transform=transform,
        vectors_per_class=per_class, **attributes, **labels,
    )


def classifiers(out):
    x, both = {"x": 1.5 * rows(7, FEATURES)}, ["label", "scores"]
    for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        write(out, f"kernel_{kernel.lower()}", [classifier(3, [2, 1, 3], kernel)], x, both, symbols=OPEN)
    named = classifier(3, [2, 3, 2], classlabels_strings=COLORS)
    write(out, "labels_are_strings", [named], x, both, symbols=OPEN)
    write(out, "softmax_of_pairs", [classifier(4, [2, 1, 1, 3], transform="SOFTMAX")], x, both)
    write(out, "class_without_vectors", [classifier(3, [2, 0, 3])], x, both)
    write(out, "two_classes", [classifier(2, [3, 2])], x, both, symbols=OPEN)
    write(out, "logistic_of_two", [classifier(2, [3, 2], transform="LOGISTIC")], x, both)
    integers = {"x": np.arange(12, dtype=np.int64).reshape(3, FEATURES)}
    write(out, "integers", [classifier(3, [1, 2, 1])], integers, both)
    for classes in (2, 3, 6):
        found = classifier(classes, [2] * classes, probabilities=True)
        write(out, f"probabilities_of_{classes}", [found], x, both, symbols=OPEN)
    far = classifier(3, [2, 1, 3], "POLY", probabilities=True)
    write(out, "certain_probabilities", [far], {"x": 20 * rows(7, FEATURES)}, both)
    logistic = classifier(3, [2, 2, 2], transform="LOGISTIC", probabilities=True)
    write(out, "logistic_of_probabilities", [logistic], x, both)
    random = np.random.default_rng(9)
    linear = node(
        "SVMClassifier", ["x"], both, ML, kernel_type="LINEAR", post_transform="SOFTMAX", classlabels_ints=[3, 1, 2], rho=[0.5],
        kernel_params=PARAMETERS, coefficients=random.standard_normal(3 * FEATURES).tolist(),
    )
    write(out, "without_vectors", [linear], x, both, symbols=OPEN)


def regressors(out):
    x = {"x": rows(7, FEATURES)}
    numbers = lambda count: np.random.default_rng(count).standard_normal(count).tolist()
    vectors = {"n_supports": 5, "coefficients": numbers(5), "support_vectors": numbers(5 * FEATURES)}
    for name, attributes in {
        "regression": {"kernel_type": "RBF", "rho": [0.25], **vectors},
        "regression_without_vectors": {"kernel_type": "LINEAR", "rho": [0.25], "n_supports": 0, "coefficients": numbers(FEATURES)},
        "one_class": {"kernel_type": "SIGMOID", "rho": [0.0], "one_class": 1, **vectors},
    }.items():
        machine = node("SVMRegressor", ["x"], ["y"], ML, post_transform="NONE", kernel_params=PARAMETERS, **attributes)
        write(out, name, [machine], x, ["y"], symbols=OPEN)


def iris(out):
    """The models that skl2onnx exported, on flowers of all three kinds and the two of KServe's example."""
    flowers = [[6.8, 2.8, 4.8, 1.4], [6.0, 3.4, 4.5, 1.6], [5.1, 3.5, 1.4, 0.2], [7.7, 2.6, 6.9, 2.3], [5.9, 3.0, 5.1, 1.8], [6.3, 2.8, 5.1, 1.5]]
    flowers = np.array(flowers, np.float32)
    for path in sorted(SKLEARN.glob("*.onnx")):
        found = ort.InferenceSession(path).run(None, {"X": flowers})
        found = [np.array([list(row.values()) for row in result], np.float32) if isinstance(result, list) else result for result in found]
        folder = out / path.stem / "test_data_set_0"
        folder.mkdir(parents=True)
        model = onnx.load(path)
        # The result of ZipMap is compared as a tensor, not as the list that the file declares.
        for value in model.graph.output:
            value.ClearField("type")
        onnx.save(model, out / path.stem / "model.onnx")
        for kind, arrays in (("input", [flowers]), ("output", found)):
            for index, array in enumerate(arrays):
                (folder / f"{kind}_{index}.pb").write_bytes(proto(array).SerializeToString())


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    for group in (classifiers, regressors, iris):
        group(target)
