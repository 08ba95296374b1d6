#!/usr/bin/env python3
"""Exports small variants of common architectures for `tests/integration/architectures.rs`.

export_architectures.py FOLDER [NAME ...]      writes FOLDER/NAME.onnx and FOLDER/architectures.json

Needs torch, torchvision, transformers, onnx and onnxscript; the tests need only its output. Weights are random with a fixed seed and not trivial: no norm has mean 0, variance 1, scale 1
or bias 0. Dynamic axes are those that users of each exporter choose: a batch, and a sequence or an image's height and width.
"""

import argparse
import inspect
import json
import pathlib
import sys
import warnings

import onnx
import torch
from torch import nn

OPSET = 17

CASES = {}


def case(shapes, exporter="torchscript"):
    """Registers a function that gives a module, its example inputs by name, and its dynamic axes by input."""

    def register(build):
        CASES[build.__name__] = (build, shapes, exporter)
        return build

    return register


class Only(nn.Module):
    """A transformers model called with inputs by name, giving the tensors named in `keep`."""

    def __init__(self, model, names, keep):
        super().__init__()
        self.model, self.names, self.keep = model, names, keep

    def forward(self, *inputs):
        result = self.model(**dict(zip(self.names, inputs)), return_dict=True)
        return tuple(getattr(result, name) for name in self.keep)


def tokens(batch, sequence, most=256):
    return torch.randint(0, most, (batch, sequence))


def of_transformers(model, inputs, axes, keep):
    return Only(model, list(inputs), keep), inputs, axes


TEXT = [{"batch": 1, "sequence": 5}, {"batch": 3, "sequence": 9}]
TEXT_AXES = {0: "batch", 1: "sequence"}
IMAGES = [{"batch": 1}, {"batch": 3}]
IMAGE_AXES = {0: "batch"}
PIXELS = [{"batch": 1, "height": 32, "width": 32}, {"batch": 2, "height": 48, "width": 64}]
PIXEL_AXES = {0: "batch", 2: "height", 3: "width"}


# ---- text ----


def bert_like(kind, **more):
    import transformers as t

    config = {
        "vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 64,
    }
    return getattr(t, kind + "Model")(getattr(t, kind + "Config")(**config, **more))


@case(TEXT)
def bert():
    inputs = {"input_ids": tokens(2, 7), "attention_mask": torch.ones(2, 7, dtype=torch.int64), "token_type_ids_mask": tokens(2, 7, 2)}
    model, names = bert_like("Bert"), ["input_ids", "attention_mask", "token_type_ids"]
    return Only(model, names, ["last_hidden_state", "pooler_output"]), inputs, dict.fromkeys(inputs, TEXT_AXES)


@case(TEXT, "dynamo")
def bert_dynamo():
    return bert()


@case(TEXT)
def distilbert():
    import transformers as t

    model = t.DistilBertForSequenceClassification(t.DistilBertConfig(vocab_size=256, dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=64))
    inputs = {"input_ids": tokens(2, 7), "attention_mask": torch.ones(2, 7, dtype=torch.int64)}
    return of_transformers(model, inputs, dict.fromkeys(inputs, TEXT_AXES), ["logits"])


class MiniLM(nn.Module):
    """As sentence-transformers exports it: cut to the longest sequence, mean over the tokens that count, normalised."""

    def __init__(self):
        super().__init__()
        self.model = bert_like("Bert")

    def forward(self, input_ids, attention_mask):
        input_ids, attention_mask = input_ids[:, :16], attention_mask[:, :16]
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean, dim=1)


@case([{"batch": 1, "sequence": 5}, {"batch": 3, "sequence": 40}])
def minilm():
    inputs = {"input_ids": tokens(2, 7), "attention_mask": torch.ones(2, 7, dtype=torch.int64)}
    return MiniLM(), inputs, dict.fromkeys(inputs, TEXT_AXES)


def gpt2_model():
    import transformers as t

    return t.GPT2LMHeadModel(t.GPT2Config(vocab_size=256, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0, use_cache=False))


@case(TEXT)
def gpt2():
    inputs = {"input_ids": tokens(2, 7), "attention_mask": torch.ones(2, 7, dtype=torch.int64)}
    return of_transformers(gpt2_model(), inputs, dict.fromkeys(inputs, TEXT_AXES), ["logits"])


@case(TEXT, "dynamo")
def gpt2_dynamo():
    return gpt2()


@case([{"batch": 1, "sequence": 5, "decoded": 2}, {"batch": 3, "sequence": 9, "decoded": 4}])
def t5():
    import transformers as t

    model = t.T5ForConditionalGeneration(t.T5Config(vocab_size=256, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, use_cache=False, decoder_start_token_id=0))
    inputs = {"input_ids": tokens(2, 7), "attention_mask": torch.ones(2, 7, dtype=torch.int64), "decoder_input_ids": tokens(2, 3)}
    axes = {"input_ids": TEXT_AXES, "attention_mask": TEXT_AXES, "decoder_input_ids": {0: "batch", 1: "decoded"}}
    return of_transformers(model, inputs, axes, ["logits"])


def llama_model(kind="Llama"):
    import transformers as t

    config = getattr(t, kind + "Config")(
        vocab_size=256, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, max_position_embeddings=64, use_cache=False
    )
    return getattr(t, kind + "ForCausalLM")(config)


@case(TEXT)
def llama():
    inputs = {"input_ids": tokens(2, 7), "attention_mask": torch.ones(2, 7, dtype=torch.int64)}
    return of_transformers(llama_model(), inputs, dict.fromkeys(inputs, TEXT_AXES), ["logits"])


@case(TEXT, "dynamo")
def llama_dynamo():
    return llama()


@case(TEXT, "dynamo")
def qwen2():
    inputs = {"input_ids": tokens(2, 7), "attention_mask": torch.ones(2, 7, dtype=torch.int64)}
    return of_transformers(llama_model("Qwen2"), inputs, dict.fromkeys(inputs, TEXT_AXES), ["logits"])


# The other exporter writes the batch of its example into the graph.
@case(TEXT, "dynamo")
def transformer_encoder():
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, norm_first=False)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return model, {"src": torch.randn(2, 7, 32)}, {"src": TEXT_AXES}


# ---- sound ----


@case([{"batch": 1, "decoded": 3}, {"batch": 2, "decoded": 5}], "dynamo")
def whisper():
    import transformers as t

    config = t.WhisperConfig(
        vocab_size=256, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48,
        num_mel_bins=8, max_source_positions=20, max_target_positions=16, pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=0, use_cache=False,
    )
    inputs = {"input_features": torch.randn(2, 8, 40), "decoder_input_ids": tokens(2, 3)}
    axes = {"input_features": {0: "batch"}, "decoder_input_ids": {0: "batch", 1: "decoded"}}
    return of_transformers(t.WhisperForConditionalGeneration(config), inputs, axes, ["logits"])


@case([{"batch": 1, "samples": 600}, {"batch": 2, "samples": 901}])
def wav2vec2():
    import transformers as t

    config = t.Wav2Vec2Config(
        vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, conv_dim=(16, 16, 16), conv_stride=(5, 2, 2), conv_kernel=(10, 3, 2),
        num_feat_extract_layers=3, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, apply_spec_augment=False,
    )
    return of_transformers(t.Wav2Vec2ForCTC(config), {"input_values": torch.randn(2, 700)}, {"input_values": {0: "batch", 1: "samples"}}, ["logits"])


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cells = kind(12, 16, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        y, state = self.cells(x)
        state = state[0] if isinstance(state, tuple) else state
        return self.head(y), state


@case(TEXT)
def lstm():
    return Recurrent(nn.LSTM), {"x": torch.randn(2, 7, 12)}, {"x": TEXT_AXES}


@case(TEXT)
def gru():
    return Recurrent(nn.GRU), {"x": torch.randn(2, 7, 12)}, {"x": TEXT_AXES}


@case(TEXT)
def rnn():
    return Recurrent(nn.RNN), {"x": torch.randn(2, 7, 12)}, {"x": TEXT_AXES}


# ---- images ----


@case(IMAGES)
def vit():
    import transformers as t

    config = t.ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=32, patch_size=8, num_labels=10)
    inputs = {"pixel_values": torch.randn(2, 3, 32, 32)}
    return of_transformers(t.ViTForImageClassification(config), inputs, {"pixel_values": IMAGE_AXES}, ["logits"])


@case(IMAGES, "dynamo")
def vit_torchvision():
    from torchvision.models.vision_transformer import VisionTransformer

    model = VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=48, num_classes=10)
    return model, {"image": torch.randn(2, 3, 32, 32)}, {"image": IMAGE_AXES}


def swin_model():
    from torchvision.models.swin_transformer import SwinTransformer

    return SwinTransformer(patch_size=[4, 4], embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4], num_classes=10)


@case(IMAGES)
def swin():
    return swin_model(), {"image": torch.randn(2, 3, 32, 32)}, {"image": IMAGE_AXES}


@case(PIXELS)
def swin_any_size():
    return swin_model(), {"image": torch.randn(2, 3, 32, 32)}, {"image": PIXEL_AXES}


@case(PIXELS)
def convnext():
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    model = ConvNeXt([CNBlockConfig(12, 24, 2), CNBlockConfig(24, None, 1)], num_classes=10)
    return model, {"image": torch.randn(2, 3, 32, 32)}, {"image": PIXEL_AXES}


@case(PIXELS)
def efficientnet():
    from torchvision.models.efficientnet import EfficientNet, FusedMBConvConfig, MBConvConfig

    stages = [FusedMBConvConfig(2, 3, 1, 8, 8, 1), MBConvConfig(1, 3, 1, 8, 8, 1, 1.0, 1.0), MBConvConfig(4, 5, 2, 8, 12, 2, 1.0, 1.0)]
    return EfficientNet(stages, 0.2, num_classes=10, last_channel=24), {"image": torch.randn(2, 3, 32, 32)}, {"image": PIXEL_AXES}


@case(PIXELS)
def regnet():
    from torchvision.models.regnet import BlockParams, RegNet

    model = RegNet(BlockParams.from_init_params(depth=4, w_0=8, w_a=8.0, w_m=2.0, group_width=8, se_ratio=0.25), num_classes=10)
    return model, {"image": torch.randn(2, 3, 32, 32)}, {"image": PIXEL_AXES}


@case(PIXELS)
def mobilenet_v3():
    from functools import partial

    from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3

    row = partial(InvertedResidualConfig, width_mult=1.0)
    stages = [row(16, 3, 16, 16, True, "RE", 2, 1), row(16, 3, 32, 16, False, "RE", 2, 1), row(16, 5, 40, 16, True, "HS", 1, 1)]
    return MobileNetV3(stages, 32, num_classes=10), {"image": torch.randn(2, 3, 32, 32)}, {"image": PIXEL_AXES}


def small_resnet(layers=(1, 1, 1, 1), width=16, dilate=False):
    from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

    class Narrow(ResNet):
        def _make_layer(self, block, planes, blocks, stride=1, dilate=False):
            return super()._make_layer(block, planes // 8, blocks, stride, dilate)

    Narrow.__name__ = "ResNet"
    model = Narrow.__new__(Narrow)
    if dilate:
        Narrow.__init__(model, Bottleneck, list(layers), replace_stride_with_dilation=[False, True, True])
        model.fc = nn.Linear(64 * Bottleneck.expansion, 10)
    else:
        Narrow.__init__(model, BasicBlock, list(layers))
        model.fc = nn.Linear(64, 10)
    return model


@case(PIXELS)
def resnet():
    return small_resnet(), {"image": torch.randn(2, 3, 32, 32)}, {"image": PIXEL_AXES}


@case(PIXELS, "dynamo")
def resnet_dynamo():
    return resnet()


class Segmenter(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, image):
        return self.model(image)["out"]


@case(PIXELS)
def deeplab_v3():
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.models.segmentation.deeplabv3 import ASPP, DeepLabV3

    backbone = IntermediateLayerGetter(small_resnet(dilate=True), {"layer4": "out"})
    head = nn.Sequential(ASPP(256, [2, 4, 6], 12), nn.Conv2d(12, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 5, 1))
    return Segmenter(DeepLabV3(backbone, head)), {"image": torch.randn(2, 3, 32, 32)}, {"image": PIXEL_AXES}


def double(inside, outside, conv=nn.Conv2d, norm=nn.BatchNorm2d):
    layers = []
    for channels in (inside, outside):
        layers += [conv(channels, outside, 3, padding=1, bias=False), norm(outside), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """The usual one: two levels, skip connections that are padded to each other's size."""

    def __init__(self, bilinear):
        super().__init__()
        self.inside, self.pool = double(3, 8), nn.MaxPool2d(2)
        self.down, self.deep = double(8, 16), double(16, 32)
        ups = lambda channels: nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), nn.Conv2d(channels, channels // 2, 1))
        up = ups if bilinear else lambda channels: nn.ConvTranspose2d(channels, channels // 2, 2, stride=2)
        self.up1, self.after1 = up(32), double(32, 16)
        self.up2, self.after2 = up(16), double(16, 8)
        self.head = nn.Conv2d(8, 4, 1)

    @staticmethod
    def join(skip, x):
        down, right = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
        x = nn.functional.pad(x, [right // 2, right - right // 2, down // 2, down - down // 2])
        return torch.cat([skip, x], dim=1)

    def forward(self, image):
        first = self.inside(image)
        second = self.down(self.pool(first))
        x = self.deep(self.pool(second))
        x = self.after1(self.join(second, self.up1(x)))
        return self.head(self.after2(self.join(first, self.up2(x))))


ODD_PIXELS = [{"batch": 1, "height": 32, "width": 32}, {"batch": 2, "height": 37, "width": 50}]


@case(ODD_PIXELS)
def unet_transposed():
    return UNet(False), {"image": torch.randn(2, 3, 33, 34)}, {"image": PIXEL_AXES}


@case(ODD_PIXELS)
def unet_bilinear():
    return UNet(True), {"image": torch.randn(2, 3, 33, 34)}, {"image": PIXEL_AXES}


class SSD(nn.Module):
    """An SSD whose backbone and heads are small: features of two levels, boxes decoded, the best of each class kept."""

    def __init__(self):
        super().__init__()
        from torchvision.models.detection import ssd
        from torchvision.models.detection.anchor_utils import DefaultBoxGenerator

        class Backbone(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Sequential(double(3, 8), nn.MaxPool2d(4)), nn.Sequential(double(8, 16), nn.MaxPool2d(2))

            def forward(self, x):
                first = self.first(x)
                return {"0": first, "1": self.second(first)}

        anchors = DefaultBoxGenerator([[2], [2, 3]])
        head = ssd.SSDHead([8, 16], anchors.num_anchors_per_location(), 3)
        self.model = ssd.SSD(Backbone(), anchors, (32, 32), 3, head=head, score_thresh=0.3, topk_candidates=20, detections_per_img=10)

    def forward(self, image):
        found = self.model([image[0]])[0]
        return found["boxes"], found["scores"], found["labels"]


@case([{}, {}])
def ssd():
    return SSD(), {"image": torch.randn(1, 3, 32, 32)}, {}


class SSDHeads(nn.Module):
    """What runs of an SSD before its suppression of overlapping boxes."""

    def __init__(self):
        super().__init__()
        model = SSD().model
        self.backbone, self.head = model.backbone, model.head

    def forward(self, image):
        result = self.head(list(self.backbone(image).values()))
        return result["bbox_regression"], torch.softmax(result["cls_logits"], -1)


@case(PIXELS)
def ssd_heads():
    return SSDHeads(), {"image": torch.randn(2, 3, 32, 32)}, {"image": PIXEL_AXES}


class FasterRCNNHeads(nn.Module):
    """The region proposal head, and the box head over aligned regions."""

    def __init__(self):
        super().__init__()
        from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
        from torchvision.models.detection.rpn import RPNHead
        from torchvision.ops import RoIAlign

        self.backbone, self.proposals = nn.Sequential(double(3, 8), nn.MaxPool2d(4)), RPNHead(8, 3)
        self.align, self.head, self.predictor = RoIAlign(3, 0.25, 2), TwoMLPHead(72, 24), FastRCNNPredictor(24, 4)

    def forward(self, image, regions):
        features = self.backbone(image)
        objects, deltas = self.proposals([features])
        corners = torch.cat([regions[:, :2], regions[:, :2] + regions[:, 2:].abs()], 1) * 8
        rows = torch.cat([torch.zeros_like(corners[:, :1]), corners], 1)
        scores, boxes = self.predictor(self.head(self.align(features, rows)))
        return objects[0], deltas[0], scores, boxes


@case([{"height": 32, "width": 32, "regions": 5}, {"height": 48, "width": 40, "regions": 1}])
def faster_rcnn_heads():
    inputs = {"image": torch.randn(1, 3, 32, 32), "regions": torch.randn(4, 4)}
    return FasterRCNNHeads(), inputs, {"image": {2: "height", 3: "width"}, "regions": {0: "regions"}}


class UNet3D(nn.Module):
    def __init__(self):
        super().__init__()
        volume = dict(conv=nn.Conv3d, norm=lambda channels: nn.GroupNorm(2, channels))
        self.inside, self.pool, self.deep = double(1, 8, **volume), nn.MaxPool3d(2), double(8, 16, **volume)
        self.up, self.after, self.head = nn.ConvTranspose3d(16, 8, 2, stride=2), double(16, 8, **volume), nn.Conv3d(8, 3, 1)

    def forward(self, volume):
        first = self.inside(volume)
        x = self.up(self.deep(self.pool(first)))
        return self.head(self.after(torch.cat([first, x], 1)))


@case([{"batch": 1, "depth": 4, "height": 8, "width": 8}, {"batch": 2, "depth": 8, "height": 12, "width": 16}])
def unet_3d():
    return UNet3D(), {"volume": torch.randn(2, 1, 6, 8, 8)}, {"volume": {0: "batch", 2: "depth", 3: "height", 4: "width"}}


class Resnet3D(nn.Module):
    def __init__(self):
        super().__init__()
        from torchvision.models.video.resnet import BasicBlock, BasicStem, Conv3DSimple

        self.stem = BasicStem()
        self.narrow = nn.Sequential(nn.Conv3d(64, 16, 1), nn.BatchNorm3d(16))
        down = nn.Sequential(nn.Conv3d(16, 24, 1, stride=2, bias=False), nn.BatchNorm3d(24))
        self.blocks = nn.Sequential(BasicBlock(16, 16, Conv3DSimple), BasicBlock(16, 24, Conv3DSimple, 2, down))
        self.head = nn.Linear(24, 10)

    def forward(self, video):
        x = self.blocks(self.narrow(self.stem(video)))
        return self.head(nn.functional.adaptive_avg_pool3d(x, 1).flatten(1))


@case([{"batch": 1, "frames": 3}, {"batch": 2, "frames": 5}])
def resnet_3d():
    return Resnet3D(), {"video": torch.randn(2, 3, 4, 16, 16)}, {"video": {0: "batch", 2: "frames"}}


# ---- export ----


def randomise(model):
    """Weights that keep activations near 1; norms that do something."""
    for module in model.modules():
        for name, tensor in list(module.named_parameters(recurse=False)) + list(module.named_buffers(recurse=False)):
            if not tensor.is_floating_point():
                continue
            is_norm = "Norm" in type(module).__name__
            with torch.no_grad():
                if name == "running_var":
                    tensor.uniform_(0.5, 1.5)
                elif name == "running_mean" or "bias" in name:
                    tensor.normal_(0, 0.2)
                elif is_norm and name == "weight":
                    tensor.uniform_(0.5, 1.5)
                elif isinstance(tensor, nn.Parameter) and tensor.dim() > 1:
                    tensor.normal_(0, 1.2 / max(tensor[0].numel(), 1) ** 0.5 if not isinstance(module, nn.Embedding) else 1.0)


def dynamic_shapes(module, inputs, axes):
    shapes = {}

    def dim(name):
        return shapes.setdefault(name, torch.export.Dim(name))

    per_input = tuple({axis: dim(name) for axis, name in axes.get(key, {}).items()} for key in inputs)
    takes_any = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in inspect.signature(module.forward).parameters.values())
    return (per_input,) if takes_any else per_input


def export(name, folder):
    build, shapes, exporter = CASES[name]
    torch.manual_seed(sum(name.encode()))
    module, inputs, axes = build()
    module = module.eval()
    randomise(module)
    path = folder / f"{name}.onnx"
    arguments = tuple(inputs.values())
    outputs = [f"out{i}" for i in range(len(module(*arguments)) if isinstance(module(*arguments), tuple) else 1)]
    if exporter == "dynamo":
        program = torch.onnx.export(module, arguments, dynamo=True, input_names=list(inputs), output_names=outputs, dynamic_shapes=dynamic_shapes(module, inputs, axes), verbose=False)
        program.save(str(path), external_data=False)
    else:
        torch.onnx.export(
            module, arguments, str(path), dynamo=False, opset_version=OPSET, input_names=list(inputs), output_names=outputs, dynamic_axes={k: dict(v) for k, v in axes.items() if v},
        )
    model = onnx.load(str(path))
    model.doc_string = ""
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    for value in list(model.graph.value_info) + list(model.graph.input) + list(model.graph.output):
        del value.metadata_props[:]
    del model.graph.metadata_props[:]
    onnx.save(model, str(path))
    return {"name": name, "shapes": shapes, "exporter": exporter}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    table = arguments.folder / "architectures.json"
    rows = {row["name"]: row for row in json.loads(table.read_text())} if table.exists() else {}
    failed = []
    for name in arguments.names or CASES:
        try:
            rows[name] = export(name, arguments.folder)
            print(f"{name}: {(arguments.folder / (name + '.onnx')).stat().st_size} bytes", flush=True)
        except Exception as error:  # Each architecture stands for itself: the others are exported all the same.
            failed.append(name)
            print(f"{name}: {type(error).__name__}: {str(error)[:400]}", file=sys.stderr, flush=True)
    table.write_text("[\n" + ",\n".join("  " + json.dumps(rows[name]) for name in sorted(rows)) + "\n]\n")
    sys.exit(f"not exported: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
