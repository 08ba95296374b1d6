//! Calls of graphs, as requests state them.

use crate::call::Content;
use crate::error::ClientError;
use atoll_control::{Attachments, InvokeGraph};
use atoll_core::Class;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

/// A call of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphCall {
    graph: String,
    inputs: BTreeMap<String, Content>,
    class: Option<Class>,
    deadline: Option<Duration>,
    price_max: Option<f64>,
    id: Option<String>,
}

impl GraphCall {
    /// A call of the graph of this name, as best effort and within the graph's own limits.
    pub fn of(graph: impl Into<String>) -> GraphCall {
        let graph = graph.into();
        GraphCall { graph, inputs: BTreeMap::new(), class: None, deadline: None, price_max: None, id: None }
    }

    /// Binds an input.
    #[must_use]
    pub fn input(mut self, name: impl Into<String>, content: impl Into<Content>) -> GraphCall {
        self.inputs.insert(name.into(), content.into());
        self
    }

    /// Sets the class of the call.
    #[must_use]
    pub fn class(mut self, class: Class) -> GraphCall {
        self.class = Some(class);
        self
    }

    /// Rejects the call if it would take longer, and cancels it after this time.
    #[must_use]
    pub fn deadline(mut self, within: Duration) -> GraphCall {
        self.deadline = Some(within);
        self
    }

    /// Rejects the call if it would cost more, in units of account.
    #[must_use]
    pub fn price_max(mut self, units: f64) -> GraphCall {
        self.price_max = Some(units);
        self
    }

    /// Sets the id of the call: calls with the same id get the same versions of functions.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> GraphCall {
        self.id = Some(id.into());
        self
    }

    /// The call as a request, with the bytes of its inputs.
    pub(crate) fn request(&self) -> Result<(InvokeGraph, Attachments), ClientError> {
        // JSON has no such numbers: the daemon would see no limit.
        if let Some(price_max) = self.price_max.filter(|units| !units.is_finite()) {
            return Err(ClientError::Call(format!("the price limit is {price_max}, not a finite number")));
        }
        let mut attachments = Attachments::default();
        let one = |(name, content): (&String, &Content)| Ok((name.clone(), content.attach(&mut attachments)?));
        let inputs: io::Result<BTreeMap<_, _>> = self.inputs.iter().map(one).collect();
        let call = InvokeGraph {
            graph: self.graph.clone(),
            inputs: inputs?,
            class: self.class,
            deadline_us: self.deadline.map(micros),
            price_max: self.price_max,
            id: self.id.clone(),
        };
        Ok((call, attachments))
    }
}

/// A time in whole microseconds.
pub(crate) fn micros(within: Duration) -> u64 {
    u64::try_from(within.as_micros()).unwrap_or(u64::MAX)
}
