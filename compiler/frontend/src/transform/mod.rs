//! Passes over the tensor graph, one file and one verb each. The order is [`PASSES`].

mod eliminate_dead;

pub use eliminate_dead::eliminate_dead;
