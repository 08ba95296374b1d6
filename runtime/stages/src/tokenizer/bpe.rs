//! Byte-level BPE: a word begins as single bytes, and the pair that was learned first is merged
//! until no pair is known.

use super::file::{BpeModel, Merge};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

pub(super) struct Bpe {
    vocabulary: HashMap<String, u32>,
    /// For each pair of tokens: its place in the order in which pairs were learned, and the token
    /// that replaces it.
    merges: HashMap<(u32, u32), (u32, u32)>,
    /// Whether a word that is a token is not split.
    takes_whole_words: bool,
}

/// A part of a word.
#[derive(Clone, Copy)]
struct Part {
    /// `None` once it was merged into the part before it.
    token: Option<u32>,
    before: Option<usize>,
    next: Option<usize>,
}

impl Bpe {
    pub(super) fn new(model: BpeModel) -> Result<Bpe, String> {
        let has_affix = [&model.continuing_subword_prefix, &model.end_of_word_suffix]
            .into_iter()
            .any(|affix| affix.as_ref().is_some_and(|affix| !affix.is_empty()));
        if has_affix || model.byte_fallback || model.dropout.is_some_and(|dropout| dropout > 0.0) {
            return Err("its `tokenizer.json` has a BPE with affixes, `byte_fallback` or `dropout`, which are not \
                        supported"
                .into());
        }
        let vocabulary: HashMap<String, u32> = model.vocab.into_iter().collect();
        let token = |text: &str| {
            let id = vocabulary.get(text).copied();
            id.ok_or_else(|| format!("its `tokenizer.json` merges `{text}`, which is not in its vocabulary"))
        };
        let mut merges = HashMap::with_capacity(model.merges.len());
        for (rank, merge) in model.merges.iter().enumerate() {
            let (left, right) = match merge {
                Merge::Pair(left, right) => (left.as_str(), right.as_str()),
                Merge::Text(text) => text
                    .split_once(' ')
                    .ok_or_else(|| format!("its `tokenizer.json` has the merge `{text}`, which is not a pair"))?,
            };
            // The file is limited, so the number of merges fits.
            let to = token(&format!("{left}{right}"))?;
            merges.insert((token(left)?, token(right)?), (rank as u32, to));
        }
        Ok(Bpe { vocabulary, merges, takes_whole_words: model.ignore_merges })
    }

    /// The tokens of a word whose bytes are characters ([`as_chars`]).
    pub(super) fn tokens(&self, word: &str, into: &mut Vec<u32>) -> Result<(), String> {
        if let Some(id) = self.vocabulary.get(word).filter(|_| self.takes_whole_words) {
            into.push(*id);
            return Ok(());
        }
        let letters: Vec<u32> = word.chars().map(|letter| self.letter(letter)).collect::<Result<_, _>>()?;
        let count = letters.len();
        let part = |(at, token): (usize, &u32)| Part {
            token: Some(*token),
            before: at.checked_sub(1),
            next: Some(at + 1).filter(|next| *next < count),
        };
        let mut parts: Vec<Part> = letters.iter().enumerate().map(part).collect();
        // The pair that was learned first is at the top; of equal ones the leftmost.
        let mut pairs = BinaryHeap::new();
        (0..count).for_each(|at| self.note(&parts, at, &mut pairs));
        while let Some(Reverse((_, at, pair, merged))) = pairs.pop() {
            let left = parts[at];
            let Some(next) = left.next else { continue };
            // One of the two may have been merged since.
            if (left.token, parts[next].token) != (Some(pair.0), Some(pair.1)) {
                continue;
            }
            let after = parts[next].next;
            parts[at] = Part { token: Some(merged), next: after, ..left };
            parts[next].token = None;
            if let Some(after) = after {
                parts[after].before = Some(at);
            }
            self.note(&parts, at, &mut pairs);
            if let Some(before) = left.before {
                self.note(&parts, before, &mut pairs);
            }
        }
        into.extend(parts.iter().filter_map(|part| part.token));
        Ok(())
    }

    fn letter(&self, letter: char) -> Result<u32, String> {
        let id = self.vocabulary.get(letter.encode_utf8(&mut [0; 4]) as &str).copied();
        id.ok_or_else(|| format!("its `tokenizer.json` has no token for the byte `{letter}`"))
    }

    /// Adds the pair that begins at a part to the heap, if it was learned.
    #[allow(clippy::type_complexity, reason = "the type of one heap, in one file")]
    fn note(&self, parts: &[Part], at: usize, pairs: &mut BinaryHeap<Reverse<(u32, usize, (u32, u32), u32)>>) {
        let right = parts[at].next.and_then(|next| parts[next].token);
        let (Some(left), Some(right)) = (parts[at].token, right) else { return };
        if let Some((rank, merged)) = self.merges.get(&(left, right)) {
            pairs.push(Reverse((*rank, at, (left, right), *merged)));
        }
    }
}

/// GPT-2's characters for bytes: a printable byte of Latin-1 stands for itself, and the others are
/// the characters from U+0100 on, in order.
pub(super) fn as_chars(text: &str) -> String {
    text.bytes().map(as_char).collect()
}

fn as_char(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|other| !is_printable(*other)).count() as u32;
    char::from_u32(0x100 + before).expect("invariant: the characters after U+0100 are valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_characters_of_gpt2() {
        assert_eq!(as_chars(" a\n\u{7f}é"), "ĠaĊġÃ©");
        let all: std::collections::BTreeSet<char> = (0..=255).map(as_char).collect();
        assert_eq!(all.len(), 256);
    }
}
