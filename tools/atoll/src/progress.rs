//! Progress bars on long work, where somebody looks.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A bar over `total` steps that shows the current one; hidden where stderr is no terminal.
pub(crate) fn bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {elapsed}").unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}
