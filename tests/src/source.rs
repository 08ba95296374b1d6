//! The repository's own files as text, and its Rust files as syntax trees.

use crate::root;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;

/// A text file of the repository.
#[derive(Clone, Debug)]
pub struct TextFile {
    /// The path from the root of the repository.
    pub path: String,
    /// The contents.
    pub text: String,
}

/// All files whose names end in one of `ends`, except those that git ignores.
///
/// # Errors
/// Fails if git cannot list the files or if a file is not UTF-8.
pub fn text_files(ends: &[&str]) -> Result<Vec<TextFile>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .context("git lists the files of the repository")?;
    ensure!(output.status.success(), "git ls-files failed: {}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let mut paths: Vec<&str> = names.split('\0').filter(|path| ends.iter().any(|end| path.ends_with(end))).collect();
    paths.sort_unstable();
    paths.dedup();
    // A file that was deleted without `git rm` is still in git's list.
    let exists = |path: &&str| root().join(path).is_file();
    let read = |path: &str| {
        let text = std::fs::read_to_string(root().join(path)).with_context(|| path.to_owned())?;
        Ok(TextFile { path: path.to_owned(), text })
    };
    paths.into_iter().filter(exists).map(read).collect()
}

/// The folder of the crate that a file belongs to: the nearest one above it with a `Cargo.toml`,
/// or the first folder of its path.
pub fn crate_of(path: &str) -> String {
    let folders = Path::new(path).ancestors().skip(1);
    let of_crate = folders
        .filter(|folder| *folder != Path::new(""))
        .find(|folder| root().join(folder).join("Cargo.toml").is_file());
    match of_crate {
        Some(folder) => folder.display().to_string(),
        None => path.split_once('/').map_or("(root)", |(first, _)| first).to_owned(),
    }
}

/// Whether a Rust file contains only tests, helpers of tests, or an example, by its path.
pub fn is_test_path(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    parts[0] == "tests" || parts.iter().any(|part| ["tests", "tests.rs", "benches", "examples"].contains(part))
}

/// Removes items that are compiled for tests only (`#[cfg(test)]`, `#[cfg(all(test, ...))]`, `#[test]`).
pub fn remove_tests(items: &mut Vec<syn::Item>) {
    items.retain(|item| !attributes(item).iter().any(is_for_tests));
    for item in items {
        match item {
            syn::Item::Mod(module) => {
                if let Some((_, items)) = &mut module.content {
                    remove_tests(items);
                }
            }
            syn::Item::Impl(block) => block.items.retain(|item| match item {
                syn::ImplItem::Fn(function) => !function.attrs.iter().any(is_for_tests),
                _ => true,
            }),
            _ => {}
        }
    }
}

fn is_for_tests(attribute: &syn::Attribute) -> bool {
    if attribute.path().is_ident("test") {
        return true;
    }
    let names_test = |list: &syn::MetaList| {
        let condition = list.tokens.to_string();
        condition == "test" || condition.starts_with("all (test")
    };
    attribute.path().is_ident("cfg") && attribute.meta.require_list().is_ok_and(names_test)
}

/// The modules that a file declares for tests only, in files of their own: `#[cfg(test)] mod NAME;`.
pub fn test_modules(items: &[syn::Item]) -> Vec<String> {
    let declared = items.iter().filter_map(|item| match item {
        syn::Item::Mod(module) if module.content.is_none() && module.attrs.iter().any(is_for_tests) => {
            Some(module.ident.to_string())
        }
        _ => None,
    });
    declared.collect()
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The doc comment of an item as one paragraph per blank line.
pub fn docs(attributes: &[syn::Attribute]) -> String {
    let mut text = String::new();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("doc")) {
        let syn::Meta::NameValue(pair) = &attribute.meta else { continue };
        let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(line), .. }) = &pair.value else { continue };
        let line = line.value();
        match line.trim() {
            "" => text.push_str("\n\n"),
            line => {
                if !text.is_empty() && !text.ends_with('\n') {
                    text.push(' ');
                }
                text.push_str(line);
            }
        }
    }
    text
}
