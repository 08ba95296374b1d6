//! WordPiece: splits a word from the left into the longest pieces that the vocabulary has.

use super::file::WordPieceModel;
use std::collections::HashMap;

pub(super) struct WordPiece {
    vocabulary: HashMap<String, u32>,
    /// The prefix of every piece of a word but the first.
    prefix: String,
    chars_max: usize,
    unknown: u32,
}

impl WordPiece {
    pub(super) fn new(model: WordPieceModel) -> Result<WordPiece, String> {
        let unknown = model.vocab.get(&model.unk_token).copied();
        let unknown =
            unknown.ok_or_else(|| format!("its `tokenizer.json` has no token `{}` (`unk_token`)", model.unk_token))?;
        Ok(WordPiece {
            vocabulary: model.vocab.into_iter().collect(),
            prefix: model.continuing_subword_prefix,
            chars_max: model.max_input_chars_per_word,
            unknown,
        })
    }

    pub(super) fn tokens(&self, word: &str, into: &mut Vec<u32>) -> Result<(), String> {
        if word.chars().count() > self.chars_max {
            into.push(self.unknown);
            return Ok(());
        }
        let first = into.len();
        let mut start = 0;
        while start < word.len() {
            let prefix = if start == 0 { "" } else { &self.prefix };
            let ends = word[start..].char_indices().map(|(at, c)| start + at + c.len_utf8());
            let longest = ends.rev().find_map(|end| {
                let id = self.vocabulary.get(&format!("{prefix}{}", &word[start..end]))?;
                Some((end, *id))
            });
            match longest {
                Some((end, id)) => {
                    into.push(id);
                    start = end;
                }
                None => {
                    // The whole word is unknown.
                    into.truncate(first);
                    into.push(self.unknown);
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
