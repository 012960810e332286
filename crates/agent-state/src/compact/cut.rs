//! Where a compaction cuts the context.

use super::options::Keep;
use super::summary::is_summary;
use crate::state::{Message, Pairs, Role};

/// Returns how many messages of the host the context starts with. They stay.
pub(crate) fn leading_system(messages: &[Message]) -> usize {
    messages.iter().take_while(|message| message.role() == Some(Role::System)).count()
}

/// Returns where the kept messages start, so that no result is kept without its call and no open call is lost. `None` if nothing would
/// be gained.
pub(crate) fn cut(messages: &[Message], keep: Keep) -> Option<usize> {
    let from = leading_system(messages);
    let wanted = wanted(messages, keep).max(from).min(messages.len().checked_sub(1)?);
    if wanted == from {
        return None;
    }
    let pairs = Pairs::of(messages);
    // An open call of the model's last message will be answered, so it must be kept.
    let open = pairs.pending(messages).map(|call| (call, messages.len()));
    let spans: Vec<(usize, usize)> = pairs.answered.iter().copied().chain(open).collect();
    // How many pairs a cut before each message would split.
    let mut splits = vec![0_i64; messages.len() + 2];
    for (call, result) in spans {
        splits[call + 1] += 1;
        splits[result + 1] -= 1;
    }
    let mut split = 0;
    let splits: Vec<bool> = splits
        .into_iter()
        .map(|change| {
            split += change;
            split > 0
        })
        .collect();
    let gains = |cut: &usize| messages[from..*cut].iter().any(|message| !is_summary(message));
    let valid = |cut: &usize| !splits[*cut] && gains(cut);
    (from + 1..=wanted).rev().find(valid).or_else(|| (wanted + 1..messages.len()).find(valid))
}

/// Returns where the kept messages would start if nothing had to stay together.
fn wanted(messages: &[Message], keep: Keep) -> usize {
    match keep {
        Keep::Tokens(budget) => {
            let mut kept = 0_u64;
            let fits = |message: &&Message| {
                kept = kept.saturating_add(message.tokens());
                kept <= budget
            };
            messages.len() - messages.iter().rev().take_while(fits).count()
        }
        Keep::Messages(count) => messages.len().saturating_sub(count),
        Keep::Dynamic => 0,
    }
}
