//! Samples per tenant, function and class.
//!
//! Series of a function are there from when it is loaded, with zeros, until it is unloaded; what it
//! used then counts in a series of its tenant without a function, so that sums over a
//! tenant's series never fall.

use super::recorder::class_label;
use super::table::DeviceSnapshot;
use super::text::Samples;
use crate::limits::USAGE_FUNCTIONS_MAX;
use atoll_engine::{Class, Tenant, Usage, UsageRow};
use std::collections::{BTreeMap, BTreeSet};

/// The label of functions that have no series of their own.
const OTHERS: &str = "(others)";

/// Rows in which so many functions at most have a name; the others of each tenant are one. First by
/// name, since a set that changes with use would tear holes into every series.
pub(super) fn bounded(rows: Vec<UsageRow>) -> Vec<UsageRow> {
    let functions: BTreeSet<(Tenant, String)> =
        rows.iter().filter_map(|row| Some((row.tenant.clone(), row.function.clone()?))).collect();
    let Some(first_without) = functions.into_iter().nth(USAGE_FUNCTIONS_MAX) else { return rows };
    let mut bounded = Vec::with_capacity(rows.len());
    let mut others: BTreeMap<(Tenant, Class), Usage> = BTreeMap::new();
    for row in rows {
        match &row.function {
            Some(function) if (&row.tenant, function) >= (&first_without.0, &first_without.1) => {
                *others.entry((row.tenant, row.class)).or_default() += &row.usage;
            }
            _ => bounded.push(row),
        }
    }
    bounded.extend(others.into_iter().map(|((tenant, class), usage)| UsageRow {
        tenant,
        function: Some(OTHERS.into()),
        class,
        usage,
    }));
    bounded
}

/// One sample a row.
pub(super) fn per_row(snapshot: &DeviceSnapshot<'_>, out: &mut Samples<'_>, value: impl Fn(&Usage) -> f64) {
    for row in &snapshot.usage {
        let [tenant, function, class] = labels(row);
        out.number(&[tenant, function, class], value(&row.usage));
    }
}

/// One sample a row and entry of a list, such as the outcomes of invocations.
pub(super) fn per_row_and<T: Copy>(
    snapshot: &DeviceSnapshot<'_>,
    out: &mut Samples<'_>,
    (name, entries): (&str, &[(T, &str)]),
    value: impl Fn(&Usage, T) -> f64,
) {
    for row in &snapshot.usage {
        let [tenant, function, class] = labels(row);
        for (entry, label) in entries {
            out.number(&[tenant, function, class, (name, label)], value(&row.usage, *entry));
        }
    }
}

/// A label that is empty is, to Prometheus, one that is not there.
fn labels(row: &UsageRow) -> [(&'static str, &str); 3] {
    [
        ("tenant", row.tenant.as_str()),
        ("function", row.function.as_deref().unwrap_or_default()),
        ("class", class_label(row.class)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_beyond_the_bound_are_one_of_their_tenant_and_nothing_is_lost() {
        let row = |index: usize, class| UsageRow {
            tenant: if index.is_multiple_of(2) { "a" } else { "b" }.parse().unwrap(),
            function: (index > 1).then(|| format!("f{index:04}")),
            class,
            usage: Usage { launches: index as u64, ..Usage::default() },
        };
        let count = USAGE_FUNCTIONS_MAX + 7;
        let rows =
            (0..count).flat_map(|index| [Class::RealTime, Class::BestEffort].map(|class| row(index, class))).collect();
        let bounded = bounded(rows);
        let named: BTreeSet<_> =
            bounded.iter().filter_map(|row| row.function.clone().filter(|name| name != OTHERS)).collect();
        assert_eq!(named.len(), USAGE_FUNCTIONS_MAX);
        assert_eq!(bounded.iter().map(|row| row.usage.launches).sum::<u64>(), (0..count as u64).sum::<u64>() * 2);
        assert_eq!(
            bounded.iter().filter(|row| row.function.as_deref() == Some(OTHERS)).count(),
            2,
            "those of `b`, by class"
        );
        assert_eq!(bounded.iter().filter(|row| row.function.is_none()).count(), 4);
    }
}
