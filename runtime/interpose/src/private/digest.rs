//! The digest by which NVIDIA's runtime recognizes the driver: HMAC (RFC 2104) with MD2 (RFC 1319)
//! and a fixed key, over facts that both know.

/// Bytes of a block, of a digest, and of the key.
const BYTES: usize = 16;

/// The key.
const KEY: [u8; BYTES] =
    [0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52, 0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f];

/// The digest of a message.
pub(crate) fn digest(message: &[u8]) -> [u8; BYTES] {
    let inner = md2(&[&KEY.map(|byte| byte ^ 0x36), message].concat());
    md2(&[KEY.map(|byte| byte ^ 0x5c), inner].concat())
}

/// MD2 of a message.
pub(crate) fn md2(message: &[u8]) -> [u8; BYTES] {
    let padding = BYTES - message.len() % BYTES;
    let mut padded = message.to_vec();
    padded.resize(message.len() + padding, padding as u8);
    padded.extend_from_slice(&checksum(&padded));
    let mut state = [0; BYTES];
    for block in padded.chunks_exact(BYTES) {
        state = mix(state, block);
    }
    state
}

/// The checksum of a padded message.
fn checksum(padded: &[u8]) -> [u8; BYTES] {
    let mut sum = [0; BYTES];
    let mut last = 0;
    for (index, byte) in padded.iter().enumerate() {
        let at = index % BYTES;
        sum[at] ^= PI[usize::from(byte ^ last)];
        last = sum[at];
    }
    sum
}

/// The state after a block.
fn mix(state: [u8; BYTES], block: &[u8]) -> [u8; BYTES] {
    let mut bytes = [0; 3 * BYTES];
    for index in 0..BYTES {
        bytes[index] = state[index];
        bytes[BYTES + index] = block[index];
        bytes[2 * BYTES + index] = state[index] ^ block[index];
    }
    let mut last = 0u8;
    for round in 0..18 {
        for byte in &mut bytes {
            *byte ^= PI[usize::from(last)];
            last = *byte;
        }
        last = last.wrapping_add(round);
    }
    std::array::from_fn(|index| bytes[index])
}

/// The permutation of RFC 1319, made from the digits of pi.
#[rustfmt::skip]
const PI: [u8; 256] = [
    41, 46, 67, 201, 162, 216, 124, 1, 61, 54, 84, 161, 236, 240, 6, 19, 98, 167, 5, 243,
    192, 199, 115, 140, 152, 147, 43, 217, 188, 76, 130, 202, 30, 155, 87, 60, 253, 212, 224, 22,
    103, 66, 111, 24, 138, 23, 229, 18, 190, 78, 196, 214, 218, 158, 222, 73, 160, 251, 245, 142,
    187, 47, 238, 122, 169, 104, 121, 145, 21, 178, 7, 63, 148, 194, 16, 137, 11, 34, 95, 33,
    128, 127, 93, 154, 90, 144, 50, 39, 53, 62, 204, 231, 191, 247, 151, 3, 255, 25, 48, 179,
    72, 165, 181, 209, 215, 94, 146, 42, 172, 86, 170, 198, 79, 184, 56, 210, 150, 164, 125, 182,
    118, 252, 107, 226, 156, 116, 4, 241, 69, 157, 112, 89, 100, 113, 135, 32, 134, 91, 207, 101,
    230, 45, 168, 2, 27, 96, 37, 173, 174, 176, 185, 246, 28, 70, 97, 105, 52, 64, 126, 15,
    85, 71, 163, 35, 221, 81, 175, 58, 195, 92, 249, 206, 186, 197, 234, 38, 44, 83, 13, 110,
    133, 40, 132, 9, 211, 223, 205, 244, 65, 129, 77, 82, 106, 220, 55, 200, 108, 193, 171, 250,
    36, 225, 123, 8, 12, 189, 177, 74, 120, 136, 149, 139, 227, 99, 232, 109, 233, 203, 213, 254,
    59, 0, 29, 57, 242, 239, 183, 14, 102, 88, 208, 228, 166, 119, 114, 248, 235, 117, 75, 10,
    49, 68, 80, 180, 143, 237, 31, 26, 219, 153, 141, 51, 159, 17, 131, 20,
];
