//! The turn gate: order, exclusion, cancellation, leases, interrupts.

#![allow(missing_docs, clippy::unwrap_used)]

mod turns {
    mod model;
    mod rules;
    mod support;
    mod tickets;
}
