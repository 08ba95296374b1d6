//! Fuzz targets of fat binaries: any bytes have entries or are an error, and what is decompressed
//! has the size that was declared.

use atoll_fatbin::{CONTENTS_BYTES_MAX, MAGIC, entries, ptx};
use bolero::check;

/// The largest size that the targets let an entry declare: more would only cost time.
const DECLARED_BYTES_MAX: u64 = 1 << 20;

/// Reads all that there is.
fn exercise(image: &[u8]) {
    let Ok(found) = entries(image) else { return };
    for entry in &found {
        if let Ok(contents) = entry.contents() {
            assert!(contents.len() as u64 <= CONTENTS_BYTES_MAX.max(image.len() as u64));
        }
    }
    let _ = ptx(image, 90);
}

/// A fat binary with an entry whose flags, declared size and contents are any.
fn fat(flags: u64, declared: u64, compressed: u32, payload: &[u8]) -> Vec<u8> {
    let mut file = MAGIC.to_le_bytes().to_vec();
    file.extend([1, 0, 16, 0]);
    file.extend((64 + payload.len() as u64).to_le_bytes());
    file.extend([1, 0, 1, 1, 64, 0, 0, 0]);
    file.extend((payload.len() as u64).to_le_bytes());
    file.extend(compressed.to_le_bytes());
    file.extend([0; 8]);
    file.extend(80u32.to_le_bytes());
    file.extend([0; 8]);
    file.extend(flags.to_le_bytes());
    file.extend([0; 8]);
    file.extend(declared.to_le_bytes());
    file.extend(payload);
    file
}

#[test]
fn any_bytes() {
    check!().for_each(|bytes| {
        exercise(bytes);
        let mut image = MAGIC.to_le_bytes().to_vec();
        image.extend(bytes);
        exercise(&image);
    });
}

#[test]
fn any_contents() {
    check!().with_type::<(u8, u64, u32, Vec<u8>)>().for_each(|(flags, declared, compressed, payload)| {
        let flags = [0, 0x1000, 0x2000, 0x8000][usize::from(flags % 4)];
        let compressed = compressed % (payload.len() as u32 + 2);
        let declared = declared % DECLARED_BYTES_MAX;
        for compressed in [compressed, payload.len() as u32] {
            let image = fat(flags, declared, compressed, payload);
            exercise(&image);
            let contents = entries(&image).ok().and_then(|found| found.first()?.contents().ok());
            if let Some(contents) = contents {
                let expected = if flags == 0 { payload.len() as u64 } else { declared };
                assert_eq!(contents.len() as u64, expected);
            }
        }
    });
}
