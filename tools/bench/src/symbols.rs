//! Flags for the ranges of a model's symbolic sizes.

use crate::failure::user_error;
use anyhow::Result;
use atoll_kgraph::{ModelOptions, SizeRange, SizeRanges, States, size_ranges};

/// Flags for the sizes that a model is compiled for.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SymbolArgs {
    /// Range of a size that an ONNX model leaves open, as in seq=1..512,batch=1..64 [default: 1 to
    /// 65536, restricted to what the model allows]
    #[arg(long, value_name = "NAME=MIN..MAX", value_parser = parse)]
    symbol: Vec<SizeRanges>,

    /// Compile for a single value of such a size, as in batch=1
    #[arg(long, value_name = "NAME=SIZE", value_parser = parse_fixed)]
    fix: Vec<SizeRanges>,
}

/// Flags for compiling a model.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ModelArgs {
    #[command(flatten)]
    symbols: SymbolArgs,

    /// Pairs of inputs and outputs of an ONNX model that form the state of a session:
    /// INPUT=OUTPUT,… or auto (recognize the names that exporters use) [default: none]
    #[arg(long, value_name = "auto|INPUT=OUTPUT", value_parser = parse_states)]
    state: Option<States>,
}

fn parse_states(text: &str) -> Result<States, String> {
    text.parse().map_err(|error: atoll_kgraph::InvalidStates| error.to_string())
}

fn parse(text: &str) -> Result<SizeRanges, String> {
    size_ranges(text).map_err(|error| error.to_string())
}

fn parse_fixed(text: &str) -> Result<SizeRanges, String> {
    let ranges = parse(text)?;
    match ranges.iter().find(|(_, range)| range.min != range.max) {
        Some((name, range)) => Err(format!("{name}={range} is not a single size; use --symbol for a range")),
        None => Ok(ranges),
    }
}

impl SymbolArgs {
    /// The ranges by the names of the sizes.
    ///
    /// # Errors
    /// A name is given twice.
    pub fn ranges(&self) -> Result<SizeRanges> {
        let mut all = SizeRanges::new();
        let given = self.symbol.iter().chain(&self.fix).flatten();
        for (name, range) in given.map(|(name, range): (&String, &SizeRange)| (name.clone(), *range)) {
            if all.insert(name.clone(), range).is_some() {
                return Err(user_error(format!("the size {name} is given twice")));
            }
        }
        Ok(all)
    }
}

impl ModelArgs {
    /// The range of one size.
    #[cfg(feature = "compiler")]
    pub(crate) fn of_range(name: &str, range: SizeRange) -> ModelArgs {
        let symbols = SymbolArgs { symbol: vec![[(name.to_owned(), range)].into()], fix: Vec::new() };
        ModelArgs { symbols, state: None }
    }

    /// The options of the compiler.
    ///
    /// # Errors
    /// A name is given twice.
    pub fn options(&self) -> Result<ModelOptions> {
        Ok(ModelOptions { symbols: self.symbols.ranges()?, states: self.state.clone().unwrap_or_default() })
    }

    /// Whether no flag was given.
    pub fn is_empty(&self) -> bool {
        self.symbols.symbol.is_empty() && self.symbols.fix.is_empty() && self.state.is_none()
    }
}
