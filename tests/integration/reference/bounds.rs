//! Named bounds of the crates with their values: the constants of every `limits.rs`, and public
//! constants elsewhere whose names say that they are bounds.

use anyhow::{Context, Result};
use atoll_tests::source::{crate_of, docs, is_test_path, remove_tests, text_files};
use quote::ToTokens;
use std::collections::BTreeMap;
use std::fmt::Write;
use syn::{BinOp, Expr, Item, Lit, Visibility};

/// Endings of the names of bounds.
const ENDINGS: [&str; 4] = ["_MAX", "_MIN", "_DEFAULT", "_TIMEOUT"];

/// Units of bytes from the largest to the smallest.
const BYTES: [(i128, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];

/// One table per crate.
pub(super) fn page() -> Result<String> {
    let mut crates: BTreeMap<String, Vec<(String, String, String)>> = BTreeMap::new();
    for file in text_files(&[".rs"])? {
        let is_shipped = file.path.starts_with("runtime/") || file.path.starts_with("compiler/");
        if !is_shipped || is_test_path(&file.path) {
            continue;
        }
        let mut tree = syn::parse_file(&file.text).with_context(|| file.path.clone())?;
        remove_tests(&mut tree.items);
        let constants = tree.items.into_iter().filter_map(|item| match item {
            Item::Const(constant) => Some(constant),
            _ => None,
        });
        let constants: BTreeMap<String, syn::ItemConst> =
            constants.map(|constant| (constant.ident.to_string(), constant)).collect();
        for (name, constant) in &constants {
            let is_bound = ENDINGS.iter().any(|ending| name.ends_with(ending));
            let is_public = matches!(constant.vis, Visibility::Public(_));
            if file.path.ends_with("limits.rs") || (is_bound && is_public) {
                let meaning = docs(&constant.attrs).replace("[`", "`").replace("`]", "`");
                let meaning = meaning.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
                let row = (name.clone(), value_text(name, &constant.expr, &constants), meaning);
                crates.entry(crate_of(&file.path)).or_default().push(row);
            }
        }
    }
    let mut text = String::new();
    for (folder, mut rows) in crates {
        rows.sort();
        writeln!(text, "## {folder}\n\n| name | value | meaning |\n| --- | ---: | --- |")?;
        for (name, value, meaning) in rows {
            writeln!(text, "| `{name}` | {value} | {meaning} |")?;
        }
        text.push('\n');
    }
    Ok(text)
}

fn value_text(name: &str, expr: &Expr, constants: &BTreeMap<String, syn::ItemConst>) -> String {
    if let Expr::Call(call) = expr {
        let function = call.func.to_token_stream().to_string().replace(' ', "");
        let argument = call.args.first().and_then(|argument| number(argument, constants));
        match (function.as_str(), argument) {
            ("Duration::from_secs", Some(count)) => return format!("{count} s"),
            ("Duration::from_millis", Some(count)) => return format!("{count} ms"),
            ("Duration::from_micros", Some(count)) => return format!("{count} µs"),
            _ => {}
        }
    }
    let Some(value) = number(expr, constants) else {
        return format!("`{}`", expr.to_token_stream().to_string().replace(" :: ", "::"));
    };
    let unit = BYTES.iter().find(|(size, _)| value >= *size && value % size == 0);
    match unit.filter(|_| name.contains("BYTES")) {
        Some((size, unit)) => format!("{} {unit}", value / size),
        None => grouped(value),
    }
}

/// A number with commas between thousands.
fn grouped(value: i128) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::from(if value < 0 { "-" } else { "" });
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn number(expr: &Expr, constants: &BTreeMap<String, syn::ItemConst>) -> Option<i128> {
    match expr {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(number) => number.base10_parse().ok(),
            _ => None,
        },
        Expr::Paren(inner) => number(&inner.expr, constants),
        Expr::Cast(cast) => number(&cast.expr, constants),
        Expr::Unary(unary) if matches!(unary.op, syn::UnOp::Neg(_)) => Some(-number(&unary.expr, constants)?),
        Expr::Path(path) => number(&constants.get(&path.path.get_ident()?.to_string())?.expr, constants),
        Expr::Binary(binary) => {
            let (left, right) = (number(&binary.left, constants)?, number(&binary.right, constants)?);
            match binary.op {
                BinOp::Shl(_) => left.checked_shl(u32::try_from(right).ok()?),
                BinOp::Mul(_) => left.checked_mul(right),
                BinOp::Add(_) => left.checked_add(right),
                BinOp::Sub(_) => left.checked_sub(right),
                BinOp::Div(_) => left.checked_div(right),
                _ => None,
            }
        }
        _ => None,
    }
}

#[test]
fn values_are_readable() -> Result<()> {
    let text = |name: &str, code: &str| Ok::<_, syn::Error>(value_text(name, &syn::parse_str(code)?, &BTreeMap::new()));
    assert_eq!(text("A_BYTES_MAX", "128 << 20")?, "128 MiB");
    assert_eq!(text("A_MAX", "1 << 16")?, "65,536");
    assert_eq!(text("A_TIMEOUT", "Duration::from_secs(5)")?, "5 s");
    assert_eq!(text("A_MAX", "u32::MAX")?, "`u32::MAX`");
    Ok(())
}
