//! Compares the results of `analyze_idempotence` with labelled kernels.
//!
//! `idempotence/NAME.ptx` starts with the label and the reason. The analysis must not prove a
//! kernel rerunnable that is not, and may reject only a few kernels that are.
//! `idempotence/table.snap` has the table of all kernels; `INSTA_UPDATE=always` writes it.

use atoll_passes::{Rerun, analyze_idempotence};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Smallest number of labelled kernels.
const KERNELS_MIN: usize = 80;
/// Limit on the rejected kernels that may run again, in percent of all kernels that may.
const NEEDLESS_PERCENT_MAX: usize = 10;

/// The correct answer for a kernel.
#[derive(Clone, Debug, PartialEq)]
enum Label {
    Always,
    Disjoint(Vec<(String, String)>),
    Never,
}

struct Case {
    name: String,
    label: Label,
    why: String,
    answer: Rerun,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/idempotence")
}

fn header<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix("// ")?.strip_prefix(key)?.strip_prefix(": "))
}

fn label(text: &str) -> Option<Label> {
    match header(text, "label")?.split_once(' ') {
        Some(("disjoint", pairs)) => {
            let pair =
                |pair: &str| pair.trim().split_once(' ').map(|(read, written)| (read.to_owned(), written.to_owned()));
            pairs.split(',').map(pair).collect::<Option<_>>().map(Label::Disjoint)
        }
        None if header(text, "label") == Some("always") => Some(Label::Always),
        None if header(text, "label") == Some("never") => Some(Label::Never),
        _ => None,
    }
}

fn cases() -> Vec<Case> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder()).expect("the labelled kernels").flatten().map(|e| e.path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "ptx"));
    files.sort();
    files.iter().map(|path| case(path)).collect()
}

fn case(path: &Path) -> Case {
    let name = path.file_stem().and_then(|s| s.to_str()).expect("a name").to_owned();
    let text = std::fs::read_to_string(path).expect("text");
    let module = atoll_ptx::parse(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
    atoll_ptx::verify(&module).unwrap_or_else(|e| panic!("{name}: {e}"));
    let kernel = module.function(&name).unwrap_or_else(|| panic!("{name}: no kernel of that name"));
    let label = label(&text).unwrap_or_else(|| panic!("{name}: no `// label:`"));
    let why = header(&text, "why").unwrap_or_else(|| panic!("{name}: no `// why:`")).to_owned();
    Case { answer: analyze_idempotence(&module, kernel), name, label, why }
}

/// Whether the answer is less strict than the label.
fn is_unsound(case: &Case) -> bool {
    match (&case.label, &case.answer) {
        (_, Rerun::Never(_)) | (Label::Always, _) => false,
        (Label::Never, _) => true,
        (Label::Disjoint(_), Rerun::Always) => true,
        (Label::Disjoint(needed), Rerun::IfDisjoint(asked)) => {
            let asked: Vec<(String, String)> =
                asked.iter().map(|(r, w)| (r.to_string().replace('%', ""), w.to_string().replace('%', ""))).collect();
            !needed.iter().all(|pair| asked.contains(pair))
        }
    }
}

fn is_rejected_needlessly(case: &Case) -> bool {
    case.label != Label::Never && matches!(case.answer, Rerun::Never(_))
}

#[test]
fn no_unsafe_kernel_is_proven_rerunnable_and_few_safe_ones_are_rejected() {
    let cases = cases();
    assert!(cases.len() >= KERNELS_MIN, "only {} labelled kernels", cases.len());
    let wrong: Vec<&str> = cases.iter().filter(|c| is_unsound(c)).map(|c| c.name.as_str()).collect();
    assert!(wrong.is_empty(), "proven rerunnable, but not: {wrong:?}");
    let may: usize = cases.iter().filter(|c| c.label != Label::Never).count();
    let needless: Vec<String> =
        cases.iter().filter(|c| is_rejected_needlessly(c)).map(|c| format!("{}: {:?}", c.name, c.answer)).collect();
    assert!(
        needless.len() * 100 <= may * NEEDLESS_PERCENT_MAX,
        "of {may} kernels, rejected without need:\n{}",
        needless.join("\n")
    );
}

#[test]
fn the_table_matches_the_snapshot() {
    insta::with_settings!({
        snapshot_path => "idempotence",
        prepend_module_to_snapshot => false,
        omit_expression => true
    }, {
        insta::assert_snapshot!("table", table(&cases()));
    });
}

fn table(cases: &[Case]) -> String {
    let may = cases.iter().filter(|c| c.label != Label::Never).count();
    let needless = cases.iter().filter(|c| is_rejected_needlessly(c)).count();
    let wrong = cases.iter().filter(|c| is_unsound(c)).count();
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{} kernels, {may} of which may run again. Proven rerunnable but not: {wrong}. Rejected without need: \
         {needless}, {} % of those that may.\n",
        cases.len(),
        needless * 100 / may.max(1)
    );
    text += "| kernel | label | proven | because |\n|---|---|---|---|\n";
    for case in cases {
        let label = match &case.label {
            Label::Always => "always".to_owned(),
            Label::Never => "never".to_owned(),
            Label::Disjoint(_) => "if disjoint".to_owned(),
        };
        let (answer, reason) = match &case.answer {
            Rerun::Always => ("always".to_owned(), case.why.clone()),
            Rerun::IfDisjoint(pairs) => {
                let pairs: Vec<String> = pairs.iter().map(|(r, w)| format!("`{r}` from `{w}`")).collect();
                (format!("if disjoint: {}", pairs.join(", ")), case.why.clone())
            }
            Rerun::Never(reason) => ("no".to_owned(), format!("{}: {reason}", case.why)),
        };
        let needless = if is_rejected_needlessly(case) { " (needless)" } else { "" };
        let _ = writeln!(text, "| `{}` | {label} | {answer}{needless} | {} |", case.name, reason.replace('|', "\\|"));
    }
    text
}
