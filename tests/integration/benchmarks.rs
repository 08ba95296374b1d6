//! The table of `BENCHMARKS.md`, generated from `docs/benchmarks/measures.toml` and the results
//! that `atoll bench --save` appended to the pages of `docs/benchmarks`.
//!
//! `ATOLL_BLESS=1` writes the table.

mod measures;
mod saved;

use anyhow::{Context, Result, ensure};
use atoll_tests::root;
use measures::Measures;

const BEGIN: &str = "<!-- Generated from docs/benchmarks/measures.toml and saved results. -->\n";
const END: &str = "<!-- End of the generated part. -->\n";
const HEAD: &str = "| measure | budget | latest | verdict | peer | command | date, commit | machine |\n\
                    |---|---|---|---|---|---|---|---|\n";

#[test]
fn table() -> Result<()> {
    let folder = root().join("docs/benchmarks");
    let measures: Measures = toml::from_str(&std::fs::read_to_string(folder.join("measures.toml"))?)?;
    let rows = measures.rows(&saved::read(&folder)?)?;
    let path = root().join("BENCHMARKS.md");
    let committed = std::fs::read_to_string(&path)?;
    let (before, rest) = committed.split_once(BEGIN).context("BENCHMARKS.md has no line that begins the table")?;
    let (_, after) = rest.split_once(END).context("BENCHMARKS.md has no line that ends the table")?;
    let text = format!("{before}{BEGIN}\n{HEAD}{rows}\nMachines:\n\n{}\n{END}{after}", measures.legend());
    if std::env::var_os("ATOLL_BLESS").is_some_and(|value| value == "1") {
        return std::fs::write(&path, text).with_context(|| path.display().to_string());
    }
    ensure!(committed == text, "the table of BENCHMARKS.md is stale; ATOLL_BLESS=1 writes it");
    Ok(())
}
