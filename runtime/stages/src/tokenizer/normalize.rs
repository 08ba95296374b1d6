//! Normalisation of texts.

use super::file;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// A step of normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Normalizer {
    /// Drops control characters, and turns white space into spaces.
    Clean,
    /// Puts spaces around Chinese characters, each of which is a word.
    Chinese,
    /// Decomposes characters, and drops accents.
    BertAccents,
    /// Drops combining marks.
    Accents,
    Lowercase,
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

/// The steps of a normaliser of the file, in order.
pub(super) fn flatten(normalizer: file::Normalizer, into: &mut Vec<Normalizer>) {
    match normalizer {
        file::Normalizer::Sequence { normalizers } => {
            normalizers.into_iter().for_each(|normalizer| flatten(normalizer, into));
        }
        file::Normalizer::Bert { clean_text, handle_chinese_chars, strip_accents, lowercase } => {
            let steps = [
                (clean_text, Normalizer::Clean),
                (handle_chinese_chars, Normalizer::Chinese),
                (strip_accents.unwrap_or(lowercase), Normalizer::BertAccents),
                (lowercase, Normalizer::Lowercase),
            ];
            into.extend(steps.into_iter().filter(|(is_on, _)| *is_on).map(|(_, step)| step));
        }
        file::Normalizer::Lowercase => into.push(Normalizer::Lowercase),
        file::Normalizer::StripAccents => into.push(Normalizer::Accents),
        file::Normalizer::Nfc => into.push(Normalizer::Nfc),
        file::Normalizer::Nfd => into.push(Normalizer::Nfd),
        file::Normalizer::Nfkc => into.push(Normalizer::Nfkc),
        file::Normalizer::Nfkd => into.push(Normalizer::Nfkd),
    }
}

impl Normalizer {
    pub(super) fn apply(self, text: &str) -> String {
        match self {
            Normalizer::Clean => text.chars().filter(|c| !is_dropped(*c)).map(as_space).collect(),
            Normalizer::Chinese => {
                let mut spaced = String::with_capacity(text.len());
                for c in text.chars() {
                    match is_chinese(c) {
                        true => spaced.extend([' ', c, ' ']),
                        false => spaced.push(c),
                    }
                }
                spaced
            }
            Normalizer::BertAccents => text.nfd().filter(|c| !is_nonspacing_mark(*c)).collect(),
            Normalizer::Accents => text.chars().filter(|c| !is_combining_mark(*c)).collect(),
            Normalizer::Lowercase => text.chars().flat_map(char::to_lowercase).collect(),
            Normalizer::Nfc => text.nfc().collect(),
            Normalizer::Nfd => text.nfd().collect(),
            Normalizer::Nfkc => text.nfkc().collect(),
            Normalizer::Nfkd => text.nfkd().collect(),
        }
    }
}

fn is_dropped(c: char) -> bool {
    matches!(c, '\0' | '\u{fffd}') || (is_control(c) && !matches!(c, '\t' | '\n' | '\r'))
}

/// Categories Cc, Cf, Cn and Co, as BERT's `is_control`.
fn is_control(c: char) -> bool {
    super::split::is_of(super::split::Class::Other, c)
}

fn is_nonspacing_mark(c: char) -> bool {
    super::split::is_of(super::split::Class::NonspacingMark, c)
}

fn as_space(c: char) -> char {
    if c.is_whitespace() { ' ' } else { c }
}

fn is_chinese(c: char) -> bool {
    matches!(
        u32::from(c),
        0x4e00..=0x9fff
            | 0x3400..=0x4dbf
            | 0x2_0000..=0x2_a6df
            | 0x2_a700..=0x2_b73f
            | 0x2_b740..=0x2_b81f
            | 0x2_b920..=0x2_ceaf
            | 0xf900..=0xfaff
            | 0x2_f800..=0x2_fa1f
    )
}
