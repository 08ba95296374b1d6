//! The entry points. Each family has a file; [`missing`] lists those that are not implemented.

mod algorithms;
mod convolution;
mod convolutions;
mod dropout;
mod filters;
mod info;
mod missing;
mod normalization;
mod pooling;
mod reductions;
mod settings;
mod softmax;
mod tensors;
mod values;

use crate::descriptors::{self, Id};
use crate::point::Operand;
use crate::tensor::Tensor;
use atoll_cuda_library::Status;

/// Declares the entry points of a family. A body returns `Result<(), Status>`.
macro_rules! entry_points {
    ($($(#[$doc:meta])* fn $name:ident $arguments:tt $body:block)+) => {
        $(atoll_cuda_library::entry_point! { $crate::status::number; $(#[$doc])* $name $arguments $body })+
    };
}
use entry_points;

/// Declares entry points that create and destroy descriptors of a kind.
macro_rules! descriptor {
    ($kind:ty: $create:ident $destroy:ident) => {
        $crate::exports::entry_points! {
            fn $create(created: atoll_cuda_library::At<$crate::descriptors::Id<$kind>>) {
                $crate::descriptors::create(created)
            }

            fn $destroy(id: $crate::descriptors::Id<$kind>) {
                $crate::descriptors::destroy(id)
            }
        }
    };
}
use descriptor;

/// A tensor of a call.
fn operand(tensor: Id<Tensor>, at: u64) -> Result<Operand, Status> {
    Ok(Operand { tensor: descriptors::get(tensor)?, at })
}
