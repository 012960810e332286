//! Progress notifications during long calls, for clients that request them: a client may abandon a call that it hears nothing about.

use rmcp::RoleServer;
use rmcp::model::ProgressNotificationParam;
use rmcp::service::RequestContext;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

/// The interval between notifications.
const PERIOD: Duration = Duration::from_secs(1);

/// Awaits the work of a call, and notifies the client every second if it sent a progress token.
///
/// The total is unknown until the work is done, so progress counts seconds and has no total.
pub(super) async fn told<T>(context: &RequestContext<RoleServer>, doing: &str, work: impl Future<Output = T>) -> T {
    let Some(token) = context.meta.get_progress_token() else { return work.await };
    let mut work = pin!(work);
    let mut ticks = interval_at(Instant::now() + PERIOD, PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seconds = 0.0;
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            _ = ticks.tick() => {
                seconds += PERIOD.as_secs_f64();
                let told = ProgressNotificationParam::new(token.clone(), seconds).with_message(format!("{doing}: {seconds:.0} s"));
                // Ignore clients that stopped listening.
                let _ = context.peer.notify_progress(told).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult};
    use rmcp::{ErrorData, ServerHandler, ServiceExt};
    use serde_json::{Value, json};
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

    /// Responds after 3.5 seconds.
    struct Slow;

    impl ServerHandler for Slow {
        async fn call_tool(&self, _: CallToolRequestParams, context: RequestContext<RoleServer>) -> Result<CallToolResponse, ErrorData> {
            told(&context, "searching", tokio::time::sleep(Duration::from_millis(3_500))).await;
            Ok(CallToolResult::success(Vec::new()).into())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn long_call_sends_progress_each_second_if_requested() {
        let (client, server) = tokio::io::duplex(1 << 16);
        let serving = tokio::spawn(async move { Slow.serve(server).await.expect("a client").waiting().await });
        let (reader, mut writer) = tokio::io::split(client);
        let mut lines = BufReader::new(reader).lines();
        for (token, told) in [(Some("t"), vec![1.0, 2.0, 3.0]), (None, vec![])] {
            let mut meta = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            });
            if let Some(token) = token {
                meta["progressToken"] = token.into();
            }
            let params = json!({"name": "x", "arguments": {}, "_meta": meta});
            let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
            writer.write_all(format!("{request}\n").as_bytes()).await.expect("sent");
            let mut heard = Vec::new();
            loop {
                let line = lines.next_line().await.expect("read").expect("an answer");
                let message: Value = serde_json::from_str(&line).expect("JSON");
                if message["method"] != "notifications/progress" {
                    assert_eq!(message["id"], 1, "{message}");
                    break;
                }
                heard.extend(message["params"]["progress"].as_f64());
            }
            assert_eq!(heard, told);
        }
        drop((lines, writer));
        serving.await.expect("ended").expect("in order");
    }
}
