//! Resizes images as Pillow does, cuts out the centre as torchvision does, and normalises.

use crate::limits::IMAGE_PIXELS_MAX;
use crate::options::{Filter, ResizeOptions};
use crate::tensor::Tensor;

/// Channels of an image: red, green, blue.
const CHANNELS: usize = 3;

/// An image in bytes, row by row.
struct Image {
    height: usize,
    width: usize,
    pixels: Vec<u8>,
}

/// For one target position: the first source position, and the weights from there. They are
/// integers that add up to about [`ONE`], as in Pillow, so that rounding gives the same bytes.
type Weights = (usize, Vec<i64>);

/// The weight 1.
const ONE: i64 = 1 << 22;

/// UINT8 [height, width, 3] to FP32 [1, 3, height, width]. The output is `(value / 255 - mean) /
/// std` for each channel.
pub(crate) fn resize(x: &Tensor, options: &ResizeOptions) -> Result<Tensor, String> {
    let (height, width) = match x.form.shape[..] {
        [height, width, 3] if height > 0 && width > 0 => (height as usize, width as usize),
        _ => return Err(format!("its input has the shape {:?}; it has to be an image", x.form.shape)),
    };
    if height.checked_mul(width).is_none_or(|pixels| pixels as u64 > IMAGE_PIXELS_MAX) {
        return Err(format!("its input has {width} x {height} pixels; the limit is {IMAGE_PIXELS_MAX}"));
    }
    let size = options.size.map(|size| size as usize);
    let whole = match options.shorter {
        None => size,
        Some(shorter) => {
            let (short, long) = (height.min(width) as u64, height.max(width) as u64);
            let longer = u64::from(shorter) * long / short;
            if u64::from(shorter).saturating_mul(longer) > IMAGE_PIXELS_MAX {
                return Err(format!("{width} x {height} pixels are too elongated to be resized to {shorter}"));
            }
            let (shorter, longer) = (shorter as usize, longer as usize);
            if height <= width { [shorter, longer] } else { [longer, shorter] }
        }
    };
    // The width changes first.
    if height.checked_mul(whole[1]).is_none_or(|pixels| pixels as u64 > IMAGE_PIXELS_MAX) {
        return Err(format!("{width} x {height} pixels are too elongated to be resized to a width of {}", whole[1]));
    }
    let source = Image { height, width, pixels: x.bytes.clone() };
    let across = scaled(source, whole[1], options.filter, Axis::Width);
    let image = scaled(across, whole[0], options.filter, Axis::Height);
    let [top, left] = [0, 1].map(|axis| half(whole[axis] - size[axis]));
    let mut planes = Vec::with_capacity(CHANNELS * size[0] * size[1]);
    for channel in 0..CHANNELS {
        for row in top..top + size[0] {
            let start = (row * image.width + left) * CHANNELS;
            let pixels = image.pixels[start..start + size[1] * CHANNELS].as_chunks::<CHANNELS>().0;
            let value = |pixel: &[u8; CHANNELS]| f32::from(pixel[channel]) / 255.0;
            planes.extend(pixels.iter().map(|pixel| (value(pixel) - options.mean[channel]) / options.std[channel]));
        }
    }
    Ok(Tensor::of_floats(vec![1, CHANNELS as i64, size[0] as i64, size[1] as i64], &planes))
}

/// Half of a number. A half is rounded to the even number, as Python does.
fn half(number: usize) -> usize {
    let half = number / 2;
    if number % 2 == 1 && half % 2 == 1 { half + 1 } else { half }
}

#[derive(Clone, Copy)]
enum Axis {
    Width,
    Height,
}

/// Changes one side of an image. Rounds to bytes, as Pillow does after each side.
fn scaled(image: Image, to: usize, filter: Filter, axis: Axis) -> Image {
    let (from, other) = match axis {
        Axis::Width => (image.width, image.height),
        Axis::Height => (image.height, image.width),
    };
    if from == to {
        return image;
    }
    let weights: Vec<Weights> = match filter {
        Filter::Bilinear => triangles(from, to),
        Filter::Nearest => nearest(from, to),
    };
    let mut pixels = vec![0; to * other * CHANNELS];
    let sum = |first: usize, step: usize, weights: &[i64]| -> u8 {
        let terms = weights.iter().enumerate().map(|(at, weight)| weight * i64::from(image.pixels[first + at * step]));
        ((terms.sum::<i64>() + ONE / 2) / ONE).min(255) as u8
    };
    match axis {
        Axis::Width => {
            for (row, line) in pixels.chunks_exact_mut(to * CHANNELS).enumerate() {
                for (pixel, (first, weights)) in line.chunks_exact_mut(CHANNELS).zip(&weights) {
                    for (channel, value) in pixel.iter_mut().enumerate() {
                        *value = sum((row * from + first) * CHANNELS + channel, CHANNELS, weights);
                    }
                }
            }
            Image { height: other, width: to, pixels }
        }
        Axis::Height => {
            let line_bytes = other * CHANNELS;
            for (line, (first, weights)) in pixels.chunks_exact_mut(line_bytes).zip(&weights) {
                for (at, value) in line.iter_mut().enumerate() {
                    *value = sum(first * line_bytes + at, line_bytes, weights);
                }
            }
            Image { height: to, width: other, pixels }
        }
    }
}

/// Pillow's weights of its filter `BILINEAR`.
fn triangles(from: usize, to: usize) -> Vec<Weights> {
    let scale = from as f64 / to as f64;
    let support = scale.max(1.0);
    let weights = |at: usize| {
        let centre = (at as f64 + 0.5) * scale;
        // Negative numbers become 0.
        let first = (centre - support + 0.5) as usize;
        let end = ((centre + support + 0.5) as usize).min(from);
        let weight = |source: usize| (1.0 - ((source as f64 - centre + 0.5) / support).abs()).max(0.0);
        let weights: Vec<f64> = (first..end).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        (first, weights.into_iter().map(|weight| (weight / sum * ONE as f64 + 0.5) as i64).collect())
    };
    (0..to).map(weights).collect()
}

/// Pillow's choice of its filter `NEAREST`. It adds up steps, so rounding errors add up as well.
fn nearest(from: usize, to: usize) -> Vec<Weights> {
    let scale = from as f64 / to as f64;
    let mut at = scale * 0.5;
    let mut next = || {
        let source = (at as usize).min(from - 1);
        at += scale;
        (source, vec![ONE])
    };
    (0..to).map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(size: [u32; 2], shorter: Option<u32>, filter: Filter) -> ResizeOptions {
        ResizeOptions { size, shorter, filter, mean: [0.0; 3], std: [1.0 / 255.0; 3] }
    }

    fn image(height: i64, width: i64, value: impl Fn(i64, i64) -> u8) -> Tensor {
        let rows = (0..height).flat_map(|row| (0..width).map(move |column| (row, column)));
        let bytes = rows.flat_map(|(row, column)| [value(row, column); 3]).collect();
        Tensor::of_bytes(vec![height, width, 3], bytes)
    }

    /// The first channel.
    fn run(x: &Tensor, options: &ResizeOptions) -> Vec<f32> {
        let y = resize(x, options).unwrap();
        let values: Vec<f32> = y.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        values[..values.len() / 3].iter().map(|value| value.round()).collect()
    }

    #[test]
    fn a_smaller_image_has_the_means_and_a_larger_one_steps_between() {
        let x = image(2, 4, |row, column| (row * 100 + column * 10) as u8);
        // Each target pixel covers four source pixels: three of them have weights 3 : 3 : 1.
        assert_eq!(
            run(&image(1, 4, |_, c| [0, 0, 200, 200][c as usize]), &options([1, 2], None, Filter::Bilinear)),
            [29.0, 171.0]
        );
        assert_eq!(run(&x, &options([2, 2], None, Filter::Nearest)), [10.0, 30.0, 110.0, 130.0]);
        assert_eq!(
            run(&image(1, 2, |_, c| (c * 100) as u8), &options([1, 4], None, Filter::Bilinear)),
            [0.0, 25.0, 75.0, 100.0]
        );
    }

    #[test]
    fn the_centre_is_cut_out_of_the_resized_image() {
        let x = image(4, 8, |row, column| (row * 8 + column) as u8);
        assert_eq!(run(&x, &options([2, 2], Some(4), Filter::Nearest)), [11.0, 12.0, 19.0, 20.0]);
        assert_eq!([0, 1, 2, 3, 4, 5].map(half), [0, 0, 1, 2, 2, 2]);
    }

    /// Bytes of `tests/fixtures/stages`, which `tests/python/stage_fixtures.py` writes with Pillow.
    fn fixture(name: &str) -> Vec<u8> {
        let path = format!("{}/../../tests/fixtures/stages/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read(path).unwrap()
    }

    /// The largest difference of decoded bytes, and how many differ.
    fn difference(found: &[u8], expected: &[u8]) -> (u8, usize) {
        assert_eq!(found.len(), expected.len());
        let all = found.iter().zip(expected).map(|(a, b)| a.abs_diff(*b));
        (all.clone().max().unwrap(), all.filter(|difference| *difference > 0).count())
    }

    #[test]
    fn images_are_resized_as_pillow_does() {
        let photo = crate::image::decode(&fixture("photo.png")).unwrap();
        assert_eq!(photo.form.shape, [48, 72, 3]);
        for (name, options) in [
            ("cut.rgb", options([32, 28], Some(36), Filter::Bilinear)),
            ("bilinear.rgb", options([20, 100], None, Filter::Bilinear)),
            ("nearest.rgb", options([20, 100], None, Filter::Nearest)),
        ] {
            let y = resize(&photo, &options).unwrap();
            let planes: Vec<u8> =
                y.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes).round() as u8).collect();
            let pixels = planes.len() / 3;
            let rgb: Vec<u8> = (0..planes.len()).map(|at| planes[at % 3 * pixels + at / 3]).collect();
            let (most, count) = difference(&rgb, &fixture(name));
            // Pillow 13 begins with the height where that is less work, and rounds in between.
            let (most_allowed, count_allowed) = if name == "bilinear.rgb" { (1, rgb.len() / 20) } else { (0, 0) };
            assert!(most <= most_allowed && count <= count_allowed, "{name}: {count} differ, by {most} at most");
        }
    }

    #[test]
    fn jpeg_files_are_decoded_as_pillow_does() {
        // Decoders may differ in how they interpolate colours of lower resolution.
        for (name, most_allowed) in [("progressive.jpg", 3), ("photo.jpg", 12)] {
            let image = crate::image::decode(&fixture(name)).unwrap();
            let expected = fixture(&format!("{name}.rgb"));
            let (most, _) = difference(&image.bytes, &expected);
            let sum: usize = image.bytes.iter().zip(&expected).map(|(a, b)| usize::from(a.abs_diff(*b))).sum();
            assert!(most <= most_allowed && sum < expected.len(), "{name}: by {most} at most, {sum} in all");
        }
    }

    #[test]
    fn elongated_images_are_refused() {
        let x = Tensor::of_bytes(vec![1, 1 << 20, 3], vec![0; 3 << 20]);
        assert!(resize(&x, &options([224, 224], Some(256), Filter::Bilinear)).unwrap_err().contains("elongated"));
        let tall = Tensor::of_bytes(vec![1 << 20, 1, 3], vec![0; 3 << 20]);
        for shorter in [None, Some(256), Some(u32::MAX)] {
            let refused = resize(&tall, &options([224, 224], shorter, Filter::Bilinear)).unwrap_err();
            assert!(refused.contains("elongated"), "{shorter:?}: {refused}");
        }
        assert!(resize(&Tensor::of_bytes(vec![0, 4, 3], vec![]), &options([2, 2], None, Filter::Nearest)).is_err());
    }
}
