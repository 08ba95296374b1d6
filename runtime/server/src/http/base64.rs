//! Base64 as Triton's clients send files in JSON.

/// Decodes a text with the standard alphabet; `None` if it is not valid.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=').as_bytes();
    if text.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for part in text.chunks(4) {
        let mut word = 0u32;
        for letter in part {
            word = word << 6 | u32::from(value(*letter)?);
        }
        // The bits of the letters, from the highest on.
        word <<= 8 + 6 * (4 - part.len());
        bytes.extend(&word.to_be_bytes()[..part.len() * 6 / 8]);
    }
    Some(bytes)
}

fn value(letter: u8) -> Option<u8> {
    Some(match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_standard_are_decoded() {
        for (text, expected) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9vYmE=", "fooba"),
            ("Zm9vYmFy", "foobar"),
            ("Zm9vYg", "foob"),
        ] {
            assert_eq!(decode(text).as_deref(), Some(expected.as_bytes()), "{text}");
        }
        assert_eq!(decode("+/8A"), Some(vec![0xfb, 0xff, 0x00]));
        for text in ["Z", "Zm9vY", "Zm 9v", "Zm9-", "Zm9v\n", "=Zg="] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
