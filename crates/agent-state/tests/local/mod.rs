//! Tests that need a clock or many runs, on stores of this process.

mod costs;
mod expiry;
mod lists;
mod model;
mod requirements;
mod shared;
