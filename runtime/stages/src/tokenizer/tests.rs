//! Compares with Hugging Face's library. `tests/python/stage_fixtures.py` writes the files.

use super::*;
use serde_json::{Value, json};

fn fixture(name: &str) -> Value {
    let path = format!("{}/../../tests/fixtures/stages/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn tokenizer(file: &Value) -> Result<Tokenizer, String> {
    Tokenizer::parse(file.to_string().as_bytes())
}

fn options(length: Option<u32>) -> TokenizeOptions {
    TokenizeOptions { tokenizer: "tokenizer.json".into(), length, pad: 7 }
}

fn numbers(tensor: &Tensor) -> Vec<i64> {
    tensor.bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
}

#[test]
fn texts_have_the_tokens_of_the_library() {
    let mut count = 0;
    for name in ["word_piece", "gpt2", "roberta", "llama"] {
        let fixture = fixture(name);
        let tokenizer = tokenizer(&fixture["tokenizer"]).unwrap();
        for case in fixture["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let tensors = tokenizer.run(text.as_bytes(), &options(None)).unwrap();
            assert_eq!(json!(numbers(&tensors[0])), case["ids"], "{name}: {text:?}");
            assert_eq!(tensors[0].form.shape, [1, case["ids"].as_array().unwrap().len() as i64]);
            count += 1;
        }
    }
    assert!(count >= 60);
}

#[test]
fn texts_are_cut_and_filled_up_to_a_length() {
    let tokenizer = tokenizer(&fixture("word_piece")["tokenizer"]).unwrap();
    let run =
        |length| tokenizer.run(b"the quick brown fox", &options(Some(length))).map(|y| y.iter().map(numbers).collect());
    let whole: Vec<Vec<i64>> = run(64).unwrap();
    let count = whole[1].iter().sum::<i64>() as usize;
    assert!(count == 6 && whole[0][count..].iter().all(|id| *id == 7) && whole[1][..count].iter().all(|one| *one == 1));
    let cut: Vec<Vec<i64>> = run(4).unwrap();
    assert_eq!(cut[0], [whole[0][0], whole[0][1], whole[0][2], whole[0][count - 1]], "[CLS] and [SEP] stay");
    assert_eq!(cut[2], [0; 4]);
    assert!(run(1).unwrap_err().contains("less than the 2 tokens"));
}

#[test]
fn what_is_not_supported_is_refused() {
    let usual = fixture("gpt2")["tokenizer"].clone();
    let refused = |path: &str, value: Value| {
        let mut file = usual.clone();
        *file.pointer_mut(path).unwrap() = value;
        tokenizer(&file).err().unwrap_or_else(|| panic!("{path} is not refused"))
    };
    for (path, value, expected) in [
        ("/model/type", json!("Unigram"), "unknown variant `Unigram`"),
        ("/model/dropout", json!(0.1), "`dropout`"),
        ("/model/byte_fallback", json!(true), "`byte_fallback`"),
        ("/model/merges", json!([["zz", "zz"]]), "merges `zzzz`, which is not in its vocabulary"),
        ("/model/merges", json!(["zz"]), "is not a pair"),
        ("/pre_tokenizer", json!(null), "has to be `ByteLevel`"),
        ("/pre_tokenizer", json!({ "type": "Metaspace" }), "unknown variant `Metaspace`"),
        ("/normalizer", json!({ "type": "Nmt" }), "unknown variant `Nmt`"),
        ("/added_tokens/0/single_word", json!(true), "the added token `<s>`"),
    ] {
        let error = refused(path, value);
        assert!(error.contains(expected), "{path}: {error}");
    }
    let split = |pattern: &str| {
        let pattern = json!({ "Regex": pattern });
        json!({ "type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false })
    };
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "use_regex": false, "trim_offsets": true });
    let error = refused("/pre_tokenizer", json!({ "type": "Sequence", "pretokenizers": [split("(?=x)"), bytes] }));
    assert!(error.contains("a pattern that is not supported"), "{error}");
    assert!(Tokenizer::parse(b"{").is_err());
    let tokenizer = tokenizer(&usual).unwrap();
    assert!(tokenizer.run(b"\xff", &options(None)).unwrap_err().contains("not UTF-8"));
    assert!(tokenizer.run(&vec![b' '; TEXT_BYTES_MAX + 1], &options(None)).unwrap_err().contains("the limit is"));
}

#[test]
fn long_words_take_time_in_proportion_to_their_length() {
    // A merge that searched all pairs would take hours for this word.
    let tokenizer = tokenizer(&fixture("gpt2")["tokenizer"]).unwrap();
    let tokens = tokenizer.run(&vec![b'e'; TEXT_BYTES_MAX], &options(None)).unwrap();
    assert!(tokens[0].form.shape[1] > 1000);
}
