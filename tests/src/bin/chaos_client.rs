//! A client of the chaos test, which starts many of these processes and kills them.

use anyhow::{Context, Result};
use atoll_tests::chaos::Process;

fn main() -> Result<()> {
    let orders = std::env::args().nth(1).context("the chaos test starts this with its orders")?;
    Ok(Process::new(serde_json::from_str(&orders)?).run()?)
}
