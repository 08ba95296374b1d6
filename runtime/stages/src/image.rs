//! Decodes images. The header is checked before memory for the pixels is allocated.

use crate::limits::IMAGE_PIXELS_MAX;
use crate::tensor::Tensor;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_core::result::DecodingResult;
use zune_jpeg::JpegDecoder;
use zune_png::PngDecoder;

/// Most scans of a progressive JPEG file. Each costs as much time as decoding the whole image.
const SCANS_MAX: usize = 64;

/// Most bytes to which the data of a PNG file is decompressed: eight for each pixel, and one for
/// each row.
const PNG_BYTES_MAX: usize = 9 * IMAGE_PIXELS_MAX as usize;

/// The pixels of a JPEG or PNG file, UINT8 [height, width, 3]. Grey becomes red, green and blue,
/// transparency is dropped, and 16-bit channels are cut to 8. The orientation in EXIF data is
/// ignored.
pub(crate) fn decode(file: &[u8]) -> Result<Tensor, String> {
    if file.starts_with(&[0xff, 0xd8, 0xff]) {
        return jpeg(file).map_err(|reason| format!("the JPEG file cannot be decoded: {reason}"));
    }
    if file.starts_with(b"\x89PNG\r\n\x1a\n") {
        return png(file).map_err(|reason| format!("the PNG file cannot be decoded: {reason}"));
    }
    Err("its input is neither a JPEG nor a PNG file".into())
}

fn check_pixels(width: u64, height: u64) -> Result<(), String> {
    match width.checked_mul(height) {
        Some(1..=IMAGE_PIXELS_MAX) => Ok(()),
        _ => Err(format!("it has {width} x {height} pixels; the limit is {IMAGE_PIXELS_MAX}")),
    }
}

fn jpeg(file: &[u8]) -> Result<Tensor, String> {
    let options = DecoderOptions::default()
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_max_scans(SCANS_MAX)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers().map_err(|error| error.to_string())?;
    let info = decoder.info().ok_or("it has no header")?;
    let (width, height) = (info.width, info.height);
    check_pixels(width.into(), height.into())?;
    let pixels = decoder.decode().map_err(|error| error.to_string())?;
    image(width.into(), height.into(), pixels)
}

fn png(file: &[u8]) -> Result<Tensor, String> {
    let options = DecoderOptions::default()
        .set_max_width(IMAGE_PIXELS_MAX as usize)
        .set_max_height(IMAGE_PIXELS_MAX as usize)
        .inflate_set_limit(PNG_BYTES_MAX)
        .png_set_strip_to_8bit(true);
    let mut decoder = PngDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers().map_err(|error| error.to_string())?;
    let (width, height) = decoder.dimensions().ok_or("it has no header")?;
    check_pixels(width as u64, height as u64)?;
    let DecodingResult::U8(pixels) = decoder.decode().map_err(|error| error.to_string())? else {
        return Err("its channels were not cut to 8 bits".into());
    };
    let rgb = match decoder.colorspace() {
        Some(ColorSpace::RGB) => pixels,
        Some(ColorSpace::RGBA) => pixels.as_chunks::<4>().0.iter().flat_map(|&[r, g, b, _]| [r, g, b]).collect(),
        Some(ColorSpace::Luma) => pixels.iter().flat_map(|&grey| [grey; 3]).collect(),
        Some(ColorSpace::LumaA) => pixels.as_chunks::<2>().0.iter().flat_map(|&[grey, _]| [grey; 3]).collect(),
        other => return Err(format!("its colour space {other:?} is not supported")),
    };
    image(width as u64, height as u64, rgb)
}

fn image(width: u64, height: u64, pixels: Vec<u8>) -> Result<Tensor, String> {
    // The numbers of pixels were checked, so they are small.
    if pixels.len() as u64 != width * height * 3 {
        return Err(format!("it gave {} bytes for {width} x {height} pixels", pixels.len()));
    }
    Ok(Tensor::of_bytes(vec![height as i64, width as i64, 3], pixels))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of `tests/fixtures/stages`, which `tests/python/stage_fixtures.py` writes with Pillow.
    fn fixture(name: &str) -> Vec<u8> {
        let path = format!("{}/../../tests/fixtures/stages/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read(path).unwrap()
    }

    #[test]
    fn every_kind_of_png_becomes_rgb() {
        for name in ["rgb", "rgba", "grey", "grey_alpha", "palette", "bits"] {
            let image = decode(&fixture(&format!("{name}.png"))).unwrap();
            assert_eq!(image.form.shape, [5, 7, 3], "{name}");
            assert_eq!(image.bytes, fixture(&format!("{name}.rgb")), "{name}");
        }
        // The upper byte of each channel.
        let deep = decode(&fixture("deep.png")).unwrap();
        assert_eq!(deep.bytes, fixture("grey.rgb"));
    }

    #[test]
    fn a_file_that_announces_too_many_pixels_is_refused_before_they_are_allocated() {
        let mut file = fixture("rgb.png");
        // The header's chunk has width and height at 16.
        file[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
        let error = decode(&file).unwrap_err();
        // Either the checksum or the size is wrong; both come before the pixels.
        assert!(error.contains("cannot be decoded"), "{error}");
        assert!(check_pixels(65536, 65536).unwrap_err().contains("65536 x 65536 pixels"));
        assert!(check_pixels(0, 5).is_err());
        let mut file = fixture("photo.jpg");
        let frame = file.windows(2).position(|bytes| bytes == [0xff, 0xc0]).unwrap();
        file[frame + 5..frame + 9].copy_from_slice(&[0xff; 4]);
        assert!(decode(&file).unwrap_err().contains("65535 x 65535 pixels"));
    }

    #[test]
    fn damaged_files_are_errors() {
        for name in ["rgb.png", "grey.png"] {
            let file = fixture(name);
            for length in 0..file.len() - 16 {
                assert!(decode(&file[..length]).is_err(), "{length} bytes of {name}");
            }
        }
        for file in [&b""[..], b"GIF89a", b"\xff\xd8\xff", b"\xff\xd8\xff\xe0\0\x10JFIF"] {
            assert!(decode(file).is_err());
        }
    }
}
