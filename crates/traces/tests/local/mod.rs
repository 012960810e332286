//! Tests of one store: costs, random operations against a model, several processes.

mod costs;
mod model;
mod processes;
