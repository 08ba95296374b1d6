//! Types of files and messages, as tables of their fields with the text of their doc comments.

use anyhow::{Context, Result};
use atoll_tests::root;
use atoll_tests::source::{docs, remove_tests};
use quote::ToTokens;
use regex::Regex;
use std::collections::BTreeMap;
use std::fmt::Write;
use syn::{Fields, GenericArgument, Item, PathArguments, Type};

/// The structures and enumerations of some files, by name.
pub(super) struct Types {
    items: BTreeMap<String, Item>,
}

/// Types that are declared elsewhere, in words.
const ELSEWHERE: &[(&str, &str)] = &[
    ("Class", "`real-time` or `best-effort`"),
    ("DataType", "datatype of KServe, as in `FP32`"),
    ("Digest", "SHA-256 in hexadecimal"),
    ("ScalingSettings", "[ScalingSettings](#scalingsettings)"),
    ("SizeRanges", "map from text to a size or range, as in `8` or `1..512`"),
    ("States", "`auto` or pairs `INPUT=OUTPUT,...`"),
    ("Tenant", "text"),
    ("VersionPolicy", "`latest`, `latest:2`, `all` or `specific:1,3`"),
];

/// What serde's attributes say of a type, field or variant.
#[derive(Default)]
struct Serde {
    words: Vec<String>,
    values: BTreeMap<String, String>,
}

impl Serde {
    fn of(attributes: &[syn::Attribute]) -> Result<Serde> {
        let mut serde = Serde::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
            attribute.parse_nested_meta(|meta| {
                let name = meta.path.to_token_stream().to_string();
                if meta.input.peek(syn::Token![=]) {
                    let value: syn::LitStr = meta.value()?.parse()?;
                    serde.values.insert(name.clone(), value.value());
                }
                serde.words.push(name);
                Ok(())
            })?;
        }
        Ok(serde)
    }

    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|own| own == word)
    }

    /// The name of a field or variant in a file.
    fn name(&self, own: &str, of_type: &Serde) -> String {
        let own = own.trim_start_matches("r#");
        match (self.values.get("rename"), of_type.values.get("rename_all").map(String::as_str)) {
            (Some(name), _) => name.clone(),
            (None, Some("kebab-case")) => separated(own, '-'),
            (None, Some("snake_case")) => separated(own, '_'),
            (None, Some("lowercase")) => own.to_lowercase(),
            (None, Some("UPPERCASE")) => own.to_uppercase(),
            (None, _) => own.to_owned(),
        }
    }
}

fn separated(name: &str, separator: char) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push(separator);
        }
        text.extend(if letter == '_' { separator } else { letter }.to_lowercase());
    }
    text
}

impl Types {
    /// All types of files with a derive of serde's.
    pub(super) fn read(paths: &[&str]) -> Result<Types> {
        let mut items = BTreeMap::new();
        for path in paths {
            let text = std::fs::read_to_string(root().join(path)).with_context(|| (*path).to_owned())?;
            let mut file = syn::parse_file(&text).with_context(|| (*path).to_owned())?;
            remove_tests(&mut file.items);
            for item in file.items {
                let (name, attributes) = match &item {
                    Item::Struct(item) => (item.ident.to_string(), &item.attrs),
                    Item::Enum(item) => (item.ident.to_string(), &item.attrs),
                    _ => continue,
                };
                let derives = |attribute: &syn::Attribute| {
                    let list = attribute.to_token_stream().to_string();
                    attribute.path().is_ident("derive") && (list.contains("Serialize") || list.contains("Deserialize"))
                };
                if attributes.iter().any(derives) {
                    items.insert(name, item);
                }
            }
        }
        Ok(Types { items })
    }

    /// Sections for some types and, after them, for the types of their fields.
    pub(super) fn page(&self, roots: &[&str]) -> Result<String> {
        let mut order: Vec<String> = roots.iter().map(|name| (*name).to_owned()).collect();
        let mut at = 0;
        while let Some(name) = order.get(at).cloned() {
            let item =
                self.items.get(&name).with_context(|| format!("there is no type {name} with a derive of serde's"))?;
            for used in self.used(item) {
                if !order.contains(&used) {
                    order.push(used);
                }
            }
            at += 1;
        }
        let mut text = String::new();
        for name in &order {
            self.section(name, &mut text)?;
        }
        Ok(text)
    }

    /// The types of this list that an item's fields have, in their order.
    fn used(&self, item: &Item) -> Vec<String> {
        let fields: Vec<&syn::Field> = match item {
            Item::Struct(item) => item.fields.iter().collect(),
            Item::Enum(item) => item.variants.iter().flat_map(|variant| &variant.fields).collect(),
            _ => Vec::new(),
        };
        let mut names = Vec::new();
        for field in fields {
            let tokens = field.ty.to_token_stream().to_string();
            let words = tokens.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            names.extend(words.filter(|word| self.items.contains_key(*word)).map(str::to_owned));
        }
        names
    }

    fn section(&self, name: &str, text: &mut String) -> Result<()> {
        let item = &self.items[name];
        let attributes = match item {
            Item::Struct(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            _ => return Ok(()),
        };
        let serde = Serde::of(attributes)?;
        writeln!(text, "## {name}\n\n{}\n", wrapped(&plain(&docs(attributes))?))?;
        match item {
            Item::Struct(item) => match &item.fields {
                Fields::Named(_) => {
                    writeln!(text, "| field | type | meaning |\n| --- | --- | --- |")?;
                    self.rows("", &item.fields, &serde, text)?;
                }
                Fields::Unnamed(fields) => {
                    let parts: Vec<String> = fields.unnamed.iter().map(|field| self.type_text(&field.ty)).collect();
                    writeln!(text, "Written as {}.", parts.join(" and "))?;
                }
                Fields::Unit => {}
            },
            Item::Enum(item) => {
                if let Some(tag) = serde.values.get("tag") {
                    writeln!(text, "The field `{tag}` has the name, beside the other fields.\n")?;
                } else if serde.has("untagged") {
                    writeln!(text, "One of these, without its name.\n")?;
                }
                writeln!(text, "| value | type | meaning |\n| --- | --- | --- |")?;
                for variant in &item.variants {
                    let of_variant = Serde::of(&variant.attrs)?;
                    let name = of_variant.name(&variant.ident.to_string(), &serde);
                    let content: Vec<String> = match &variant.fields {
                        Fields::Unnamed(fields) => {
                            fields.unnamed.iter().map(|field| self.type_text(&field.ty)).collect()
                        }
                        _ => Vec::new(),
                    };
                    let meaning = cell(&docs(&variant.attrs))?;
                    writeln!(text, "| `{name}` | {} | {meaning} |", content.join(", "))?;
                    if let Fields::Named(_) = &variant.fields {
                        self.rows(&format!("{name}."), &variant.fields, &of_variant, text)?;
                    }
                }
            }
            _ => {}
        }
        text.push('\n');
        Ok(())
    }

    fn rows(&self, prefix: &str, fields: &Fields, of_type: &Serde, text: &mut String) -> Result<()> {
        for field in fields {
            let serde = Serde::of(&field.attrs)?;
            if serde.has("skip") {
                continue;
            }
            let own = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
            let mut name = format!("`{prefix}{}`", serde.name(&own, of_type));
            if let Some(other) = serde.values.get("alias") {
                write!(name, " or `{other}`")?;
            }
            let is_optional = serde.has("default") || serde.has("skip_serializing_if") || outer(&field.ty) == "Option";
            let optional = if is_optional { ", optional" } else { "" };
            let content = match serde.values.get("deserialize_with").map(String::as_str) {
                Some("size") => "bytes, as in `512M`".to_owned(),
                Some("percent" | "some_percent") => "number".to_owned(),
                _ => self.type_text(&field.ty),
            };
            writeln!(text, "| {name} | {content}{optional} | {} |", cell(&docs(&field.attrs))?)?;
        }
        Ok(())
    }

    /// A type in words.
    fn type_text(&self, ty: &Type) -> String {
        let Type::Path(path) = ty else {
            return match ty {
                Type::Array(array) => format!("list of {}", self.type_text(&array.elem)),
                Type::Reference(reference) => self.type_text(&reference.elem),
                Type::Tuple(tuple) => {
                    let parts: Vec<String> = tuple.elems.iter().map(|ty| self.type_text(ty)).collect();
                    format!("list of {}", parts.join(" and "))
                }
                other => format!("`{}`", other.to_token_stream()),
            };
        };
        let Some(last) = path.path.segments.last() else { return String::new() };
        let arguments: Vec<String> = match &last.arguments {
            PathArguments::AngleBracketed(list) => list
                .args
                .iter()
                .filter_map(|argument| match argument {
                    GenericArgument::Type(ty) => Some(self.type_text(ty)),
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        };
        match (last.ident.to_string().as_str(), arguments.as_slice()) {
            ("String" | "str" | "PathBuf" | "Path" | "SmolStr", _) => "text".to_owned(),
            ("bool", _) => "true or false".to_owned(),
            ("u8" | "u16" | "u32" | "u64" | "usize" | "NonZeroU32" | "NonZeroU64" | "NonZeroUsize", _) => {
                "whole number".to_owned()
            }
            ("i8" | "i16" | "i32" | "i64" | "isize", _) => "integer".to_owned(),
            ("f32" | "f64", _) => "number".to_owned(),
            ("Option" | "Box" | "Arc" | "Cow", [inner]) => inner.clone(),
            ("Vec" | "VecDeque" | "BTreeSet", [inner]) => format!("list of {inner}"),
            ("BTreeMap" | "HashMap" | "IndexMap", [key, value]) => format!("map from {key} to {value}"),
            (name, _) if self.items.contains_key(name) => format!("[{name}](#{})", name.to_lowercase()),
            (name, _) => ELSEWHERE
                .iter()
                .find(|(known, _)| *known == name)
                .map_or_else(|| format!("`{name}`"), |(_, text)| (*text).to_owned()),
        }
    }
}

fn outer(ty: &Type) -> String {
    match ty {
        Type::Path(path) => path.path.segments.last().map_or_else(String::new, |last| last.ident.to_string()),
        _ => String::new(),
    }
}

/// A doc comment without the links of rustdoc.
fn plain(docs: &str) -> Result<String> {
    let link = Regex::new(r"\[(`[^`]+`)\](\([^)]*\))?")?;
    Ok(link.replace_all(docs, "$1").into_owned())
}

fn cell(docs: &str) -> Result<String> {
    Ok(plain(docs)?.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|"))
}

/// A text in lines of at most 100 columns; code blocks stay as they are.
pub(super) fn wrapped(text: &str) -> String {
    let mut lines = Vec::new();
    for paragraph in text.split("\n\n") {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > 100 {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines.join("\n")
}
