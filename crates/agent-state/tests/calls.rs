//! The calls of stateless agents: load, run, save, interrupt, shutdown.

#![allow(missing_docs, clippy::unwrap_used)]

mod turns {
    // The tests of the gate use the rest.
    #[allow(dead_code)]
    pub(crate) mod support;
}

mod calls {
    mod ends;
    mod interrupts;
    mod rules;
    mod shutdowns;
    mod support;
}
