//! The parts of a `tokenizer.json` that are read.

use serde::Deserialize;
use std::collections::BTreeMap;

/// A token and its type: usually 0; 1 is for the second text of a pair, but these tokenisers take
/// single texts.
pub(super) type Token = (u32, u32);

#[derive(Deserialize)]
pub(super) struct File {
    #[serde(default)]
    pub(super) added_tokens: Vec<AddedToken>,
    pub(super) normalizer: Option<Normalizer>,
    pub(super) pre_tokenizer: Option<PreTokenizer>,
    pub(super) post_processor: Option<PostProcessor>,
    pub(super) model: Model,
}

#[derive(Deserialize)]
pub(super) struct AddedToken {
    pub(super) id: u32,
    pub(super) content: String,
    #[serde(default)]
    pub(super) single_word: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
    #[serde(default)]
    pub(super) normalized: bool,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum Normalizer {
    Sequence {
        normalizers: Vec<Normalizer>,
    },
    #[serde(rename = "BertNormalizer")]
    Bert {
        clean_text: bool,
        handle_chinese_chars: bool,
        strip_accents: Option<bool>,
        lowercase: bool,
    },
    Lowercase,
    StripAccents,
    #[serde(rename = "NFC")]
    Nfc,
    #[serde(rename = "NFD")]
    Nfd,
    #[serde(rename = "NFKC")]
    Nfkc,
    #[serde(rename = "NFKD")]
    Nfkd,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum PreTokenizer {
    Sequence {
        pretokenizers: Vec<PreTokenizer>,
    },
    #[serde(rename = "BertPreTokenizer")]
    Bert,
    WhitespaceSplit,
    ByteLevel {
        add_prefix_space: bool,
        #[serde(default = "yes")]
        use_regex: bool,
    },
    Split {
        pattern: Pattern,
        behavior: Behavior,
        invert: bool,
    },
}

#[derive(Deserialize)]
pub(super) enum Pattern {
    Regex(String),
    String(String),
}

/// What happens to the matches of a pattern. All other behaviours are refused.
#[derive(Deserialize)]
pub(super) enum Behavior {
    Isolated,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum PostProcessor {
    Sequence { processors: Vec<PostProcessor> },
    ByteLevel {},
    BertProcessing { sep: (String, u32), cls: (String, u32) },
    RobertaProcessing { sep: (String, u32), cls: (String, u32) },
    TemplateProcessing { single: Vec<Piece>, special_tokens: BTreeMap<String, Special> },
}

#[derive(Deserialize)]
pub(super) enum Piece {
    SpecialToken {
        id: String,
        #[serde(default)]
        type_id: u32,
    },
    Sequence {
        #[serde(default)]
        type_id: u32,
    },
}

#[derive(Deserialize)]
pub(super) struct Special {
    ids: Vec<u32>,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum Model {
    WordPiece(WordPieceModel),
    #[serde(rename = "BPE")]
    Bpe(BpeModel),
}

#[derive(Deserialize)]
pub(super) struct WordPieceModel {
    pub(super) unk_token: String,
    #[serde(default = "continuing")]
    pub(super) continuing_subword_prefix: String,
    #[serde(default = "word_chars")]
    pub(super) max_input_chars_per_word: usize,
    pub(super) vocab: BTreeMap<String, u32>,
}

#[derive(Deserialize)]
pub(super) struct BpeModel {
    pub(super) vocab: BTreeMap<String, u32>,
    pub(super) merges: Vec<Merge>,
    pub(super) dropout: Option<f32>,
    pub(super) continuing_subword_prefix: Option<String>,
    pub(super) end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub(super) byte_fallback: bool,
    #[serde(default)]
    pub(super) ignore_merges: bool,
}

/// A pair, or a text of two words.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Merge {
    Pair(String, String),
    Text(String),
}

fn yes() -> bool {
    true
}

fn continuing() -> String {
    "##".into()
}

fn word_chars() -> usize {
    100
}

/// The tokens before and after a text.
pub(super) fn around(processor: PostProcessor) -> Result<(Vec<Token>, Vec<Token>), String> {
    match processor {
        PostProcessor::Sequence { processors } => {
            let mut all = (Vec::new(), Vec::new());
            for processor in processors {
                let (before, after) = around(processor)?;
                all.0.splice(0..0, before);
                all.1.extend(after);
            }
            Ok(all)
        }
        // It changes only offsets, which are not reported.
        PostProcessor::ByteLevel {} => Ok(Default::default()),
        PostProcessor::BertProcessing { sep, cls } | PostProcessor::RobertaProcessing { sep, cls } => {
            Ok((vec![(cls.1, 0)], vec![(sep.1, 0)]))
        }
        PostProcessor::TemplateProcessing { single, special_tokens } => {
            let (mut before, mut after, mut is_after) = (Vec::new(), Vec::new(), false);
            for piece in single {
                match piece {
                    Piece::Sequence { type_id: 0 } if !is_after => is_after = true,
                    Piece::Sequence { .. } => {
                        return Err(
                            "its `tokenizer.json` has a template that repeats the text, or gives it a type".into()
                        );
                    }
                    Piece::SpecialToken { id, type_id } => {
                        let special = special_tokens.get(&id);
                        let special =
                            special.ok_or_else(|| format!("its `tokenizer.json` has no special token `{id}`"))?;
                        let side = if is_after { &mut after } else { &mut before };
                        side.extend(special.ids.iter().map(|token| (*token, type_id)));
                    }
                }
            }
            Ok((before, after))
        }
    }
}
