//! The batch axis: which dimension of which buffer counts rows that are independent of each other.

use crate::expr::SymbolId;
use serde::{Deserialize, Serialize};

/// A symbol that counts independent rows, and where the rows lie.
///
/// Whoever has several requests may put their rows together, and row `i` of each output is what row
/// `i` of each input gives alone. Only an analysis of a frontend writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchAxis {
    /// The number of rows. Every input and output has exactly one dimension that is this symbol,
    /// and no other that depends on it.
    pub symbol: SymbolId,
    /// Per buffer, the dimension of the rows; `None` for a buffer that has no rows, or for which
    /// nothing is claimed. Inputs and outputs have one, constants have none.
    pub axes: Vec<Option<u32>>,
    /// Name of the analysis that proved the rows independent.
    pub proof: String,
}
