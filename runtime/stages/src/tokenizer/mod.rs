//! Tokenisers from a `tokenizer.json` of Hugging Face: WordPiece as in BERT, and byte-level BPE as
//! in GPT-2.
//!
//! A text passes four steps: added tokens are cut out, the rest is normalised (`normalize`), split
//! into words (`split`), and each word becomes tokens (`word_piece`, `bpe`). A template then adds
//! tokens around them.
//!
//! A file that needs anything else is refused when the graph is deployed. `truncation` and
//! `padding` of the file have no effect: the stage's `length` and `pad` decide.

mod bpe;
mod file;
mod normalize;
mod split;
mod word_piece;

use crate::limits::TEXT_BYTES_MAX;
use crate::options::TokenizeOptions;
use crate::tensor::Tensor;
use bpe::Bpe;
use file::{File, Token};
use normalize::Normalizer;
use regex::Regex;
use split::Splitter;
use std::collections::BTreeMap;
use word_piece::WordPiece;

/// A tokeniser.
pub(crate) struct Tokenizer {
    added: BTreeMap<String, Added>,
    /// Finds the added tokens; `None` if there are none.
    find_added: Option<Regex>,
    normalizers: Vec<Normalizer>,
    splitters: Vec<Splitter>,
    model: Model,
    before: Vec<Token>,
    after: Vec<Token>,
}

/// An added token: a text that always becomes one token.
struct Added {
    id: u32,
    /// Whether white space before or after it belongs to it.
    strips: [bool; 2],
}

enum Model {
    WordPiece(WordPiece),
    Bpe(Bpe),
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    pub(crate) fn parse(file: &[u8]) -> Result<Tokenizer, String> {
        let file: File =
            serde_json::from_slice(file).map_err(|error| format!("its `tokenizer.json` cannot be used: {error}"))?;
        let model = match file.model {
            file::Model::WordPiece(model) => Model::WordPiece(WordPiece::new(model)?),
            file::Model::Bpe(model) => Model::Bpe(Bpe::new(model)?),
        };
        let (mut normalizers, mut splitters) = (Vec::new(), Vec::new());
        if let Some(normalizer) = file.normalizer {
            normalize::flatten(normalizer, &mut normalizers);
        }
        if let Some(splitter) = file.pre_tokenizer {
            split::flatten(splitter, &mut splitters)?;
        }
        let is_bytes = matches!(splitters.last(), Some(Splitter::Bytes { .. }));
        match model {
            Model::Bpe(_) if !is_bytes => {
                return Err("its `tokenizer.json` has a BPE that is not byte-level: the last pre-tokenizer has to be \
                            `ByteLevel`"
                    .into());
            }
            Model::WordPiece(_) if is_bytes => {
                return Err("its `tokenizer.json` has a WordPiece of bytes".into());
            }
            _ => {}
        }
        let mut added = BTreeMap::new();
        for token in file.added_tokens {
            if token.content.is_empty() || token.single_word || (token.normalized && !normalizers.is_empty()) {
                return Err(format!(
                    "its `tokenizer.json` has the added token `{}`; tokens that are empty, `single_word` or \
                     `normalized` are not supported",
                    token.content.escape_debug()
                ));
            }
            added.insert(token.content, Added { id: token.id, strips: [token.lstrip, token.rstrip] });
        }
        let find_added = finder(&added)?;
        let (before, after) = file.post_processor.map_or_else(|| Ok(Default::default()), file::around)?;
        Ok(Tokenizer { added, find_added, normalizers, splitters, model, before, after })
    }

    /// The tokens of a text: `ids`, `mask` (1 for tokens, 0 for padding), and `types`.
    pub(crate) fn run(&self, text: &[u8], options: &TokenizeOptions) -> Result<Vec<Tensor>, String> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(format!("its text has {} bytes; the limit is {TEXT_BYTES_MAX}", text.len()));
        }
        let text = std::str::from_utf8(text).map_err(|error| format!("its text is not UTF-8: {error}"))?;
        let mut body = self.body(text)?;
        let around = self.before.len() + self.after.len();
        let length = options.length.map(|length| length as usize);
        if let Some(length) = length {
            body.truncate(length.saturating_sub(around));
        }
        let mut tokens: Vec<Token> = self.before.clone();
        tokens.extend(body.into_iter().map(|id| (id, 0)));
        tokens.extend(&self.after);
        let mut mask = vec![1; tokens.len()];
        if let Some(length) = length {
            if tokens.len() > length {
                return Err(format!("`length = {length}` is less than the {around} tokens that are added"));
            }
            tokens.resize(length, (options.pad, 0));
            mask.resize(length, 0);
        }
        let shape = vec![1, tokens.len() as i64];
        let (ids, types): (Vec<i64>, Vec<i64>) =
            tokens.iter().map(|(id, kind)| (i64::from(*id), i64::from(*kind))).unzip();
        Ok([ids, mask, types].iter().map(|values| Tensor::of_indices(shape.clone(), values)).collect())
    }

    /// The tokens of a text, without those that the template adds.
    fn body(&self, text: &str) -> Result<Vec<u32>, String> {
        let mut tokens = Vec::new();
        let mut at = 0;
        for found in self.find_added.iter().flat_map(|regex| regex.find_iter(text)) {
            let token = &self.added[found.as_str()];
            // The previous added token may have stripped the white space before this one.
            let mut before = &text[at.min(found.start())..found.start()];
            if token.strips[0] {
                before = before.trim_end();
            }
            self.words(before, &mut tokens)?;
            tokens.push(token.id);
            let after = &text[found.end()..];
            at = text.len() - if token.strips[1] { after.trim_start() } else { after }.len();
        }
        self.words(&text[at..], &mut tokens)?;
        Ok(tokens)
    }

    fn words(&self, text: &str, tokens: &mut Vec<u32>) -> Result<(), String> {
        if text.is_empty() {
            return Ok(());
        }
        let mut text = text.to_owned();
        for normalizer in &self.normalizers {
            text = normalizer.apply(&text);
        }
        let mut words = vec![text];
        for splitter in &self.splitters {
            words = words.iter().flat_map(|word| splitter.split(word)).collect();
        }
        words.iter().filter(|word| !word.is_empty()).try_for_each(|word| match &self.model {
            Model::WordPiece(model) => model.tokens(word, tokens),
            Model::Bpe(model) => model.tokens(word, tokens),
        })
    }
}

/// Finds added tokens. Of two that begin at one place, it finds the longer one.
fn finder(added: &BTreeMap<String, Added>) -> Result<Option<Regex>, String> {
    if added.is_empty() {
        return Ok(None);
    }
    let mut texts: Vec<&String> = added.keys().collect();
    texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
    let pattern = texts.into_iter().map(|text| regex::escape(text)).collect::<Vec<_>>().join("|");
    let regex = Regex::new(&pattern);
    regex.map(Some).map_err(|error| format!("its `tokenizer.json` has too many added tokens: {error}"))
}

#[cfg(test)]
mod tests;
