//! The names that a library exports, compared with its page of the reference.

use object::{Object, ObjectSymbol};
use std::collections::BTreeSet;
use std::path::Path;

/// The functions that a library exports.
pub(crate) fn exported(file: &Path) -> BTreeSet<String> {
    let bytes = std::fs::read(file).expect("a library");
    let file = object::File::parse(&*bytes).expect("a shared object");
    let symbols = file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
    let names = symbols.filter(|symbol| symbol.kind() == object::SymbolKind::Text);
    names.map(|symbol| symbol.name().expect("a name").to_owned()).collect()
}

/// Where a page lists the entry points that are implemented.
pub(crate) struct Page<'a> {
    /// The file in `docs/reference`.
    pub(crate) file: &'a str,
    /// The headings of the first section with names, and of the one after the last.
    pub(crate) sections: [&'a str; 2],
    /// How names begin.
    pub(crate) beginnings: &'a [&'a str],
    /// How symbols end that the page does not list, because they are forms of others.
    pub(crate) forms: &'a [&'a str],
    /// An end of symbols that their names on the page do not have.
    pub(crate) version: &'a str,
}

/// Fails unless the page lists what the library exports, except what `missing.rs` of the crate in
/// `root` lists.
pub(crate) fn page_lists_what_is_implemented(root: &str, page: &Page<'_>, names: &BTreeSet<String>) {
    let read = |path: &str| std::fs::read_to_string(Path::new(root).join(path)).expect("a file of the repository");
    let missing = read("src/exports/missing.rs");
    let (_, missing) = missing.split_once("\nmissing! {\n").expect("the list");
    let missing: BTreeSet<&str> = missing.split_whitespace().filter(|word| *word != "}").collect();
    let is_form = |name: &str| page.forms.iter().any(|form| name.ends_with(form));
    let implemented = names.iter().map(String::as_str).filter(|name| !missing.contains(name) && !is_form(name));
    let implemented: BTreeSet<&str> = implemented.map(|name| name.strip_suffix(page.version).unwrap_or(name)).collect();
    let text = read(&format!("../../docs/reference/{}", page.file));
    let [first, after] = page.sections.map(|heading| format!("\n## {heading}"));
    let (_, listed) = text.split_once(&first).expect("sections");
    let (listed, _) = listed.split_once(&after).expect("a section");
    let is_name = |text: &&str| page.beginnings.iter().any(|beginning| text.starts_with(beginning));
    let listed: BTreeSet<&str> = listed.split('`').skip(1).step_by(2).filter(is_name).collect();
    let differing: Vec<_> = implemented.symmetric_difference(&listed).collect();
    assert!(differing.is_empty(), "only implemented or only on the page: {differing:?}");
    assert!(missing.iter().all(|name| names.contains(*name)), "what is missing is exported");
}
