//! Shared libraries that only refer to another one. A program is linked with versioned symbols such
//! as `cudaMalloc@libcudart.so.13`. The dynamic linker warns unless the library that it loads under
//! that name defines the version. One library cannot define three versions of each symbol, so each
//! name is a small library that defines the version and depends on the real one, in which the
//! symbols are found.

/// Sizes in bytes of the file's parts: header, program header, symbol, version definition with its
/// name, entry of the dynamic section.
const HEADER: usize = 64;
const SEGMENT: usize = 56;
const SYMBOL: usize = 24;
const VERSION: usize = 28;
const DYNAMIC: usize = 16;

/// Alignment of the loaded segment in bytes: the largest page size of supported systems.
const PAGE: u64 = 64 << 10;

/// The architecture of this program, as ELF numbers it.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// The bytes of a shared library for Linux. `name` is its name and its only version; it depends on
/// `needs`.
pub(crate) fn stub(name: &str, needs: &str) -> Vec<u8> {
    let mut strings = vec![0];
    let name_at = text(&mut strings, name);
    let needs_at = text(&mut strings, needs);
    // All parts are loaded at their offsets in the file: program headers, an empty symbol, the hash
    // table, the symbol's version, the version definitions, the dynamic section, and the strings.
    let symbols_at = HEADER + 3 * SEGMENT;
    let hash_at = symbols_at + SYMBOL;
    let symbol_versions_at = hash_at + 16;
    let versions_at = symbol_versions_at + 8;
    let dynamic_at = versions_at + 2 * VERSION;
    let dynamic = [
        (1, needs_at),
        (14, name_at),
        (4, hash_at as u64),
        (5, (dynamic_at + 11 * DYNAMIC) as u64),
        (6, symbols_at as u64),
        (10, strings.len() as u64),
        (11, SYMBOL as u64),
        (0x6fff_fff0, symbol_versions_at as u64),
        (0x6fff_fffc, versions_at as u64),
        (0x6fff_fffd, 2),
        (0, 0),
    ];
    let dynamic_bytes = (dynamic.len() * DYNAMIC) as u64;
    let bytes = (dynamic_at + dynamic.len() * DYNAMIC + strings.len()) as u64;

    let mut file = header();
    // Loads the whole file, readable and writable: the dynamic linker writes to the dynamic
    // section.
    segment(&mut file, (1, 6), (0, bytes), PAGE);
    segment(&mut file, (2, 6), (dynamic_at as u64, dynamic_bytes), 8);
    // Without this segment the stack of the program would become executable.
    segment(&mut file, (0x6474_e551, 6), (0, 0), 16);
    file.extend([0; SYMBOL]);
    [1u32, 1, 0, 0].iter().for_each(|word| file.extend(word.to_le_bytes()));
    file.extend([0; 8]);
    version(&mut file, (1, 1), (name, name_at), VERSION as u32);
    version(&mut file, (0, 2), (name, name_at), 0);
    for (tag, value) in dynamic {
        file.extend(u64::to_le_bytes(tag));
        file.extend(value.to_le_bytes());
    }
    file.extend(strings);
    file
}

/// Adds a text to the string table. Returns its offset.
fn text(strings: &mut Vec<u8>, text: &str) -> u64 {
    let at = strings.len() as u64;
    strings.extend(text.bytes().chain([0]));
    at
}

/// The header of a 64-bit little-endian shared library with three segments and no sections.
fn header() -> Vec<u8> {
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend(3u16.to_le_bytes());
    file.extend(MACHINE.to_le_bytes());
    file.extend(1u32.to_le_bytes());
    [0, HEADER as u64, 0].iter().for_each(|word| file.extend(word.to_le_bytes()));
    file.extend(0u32.to_le_bytes());
    [HEADER as u16, SEGMENT as u16, 3, 64, 0, 0].iter().for_each(|word| file.extend(word.to_le_bytes()));
    file
}

/// A program header: type and flags, offset and size.
fn segment(file: &mut Vec<u8>, (kind, flags): (u32, u32), (at, bytes): (u64, u64), align: u64) {
    file.extend(kind.to_le_bytes());
    file.extend(flags.to_le_bytes());
    [at, at, at, bytes, bytes, align].iter().for_each(|word| file.extend(word.to_le_bytes()));
}

/// A version definition: flags and index, name, and bytes to the next definition.
fn version(file: &mut Vec<u8>, (flags, number): (u16, u16), (name, name_at): (&str, u64), next: u32) {
    [1, flags, number, 1].iter().for_each(|half| file.extend(half.to_le_bytes()));
    [hash(name), 20, next, name_at as u32, 0].iter().for_each(|word| file.extend(word.to_le_bytes()));
}

/// The hash of a name, by the ELF specification.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0u32, |hash, byte| {
        let hash = (hash << 4).wrapping_add(byte.into());
        let high = hash & 0xf000_0000;
        (hash ^ (high >> 24)) & !high
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_dynamic_linker() {
        // Values from `readelf -V` of system libraries.
        assert_eq!(hash("GLIBC_2.2.5"), 0x0969_1a75);
        assert_eq!(hash("GLIBC_2.17"), 0x0696_9197);
    }
}
