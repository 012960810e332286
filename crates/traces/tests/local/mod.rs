//! Tests of one store: costs, random operations against a model, several processes, sweeps of small pages.

mod costs;
mod model;
mod processes;
mod sweeps;
