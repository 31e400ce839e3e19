/* What the ranks have done, for people and for Prometheus. */
#include "cluster.h"

void cluster_say_stats(void) {
    cluster_rank_stats s;
    for (int k = 1; cluster_stats_get(k, &s); k++) {
        char memory[APP_BYTES_TEXT], read[APP_BYTES_TEXT], out[APP_BYTES_TEXT], in[APP_BYTES_TEXT];
        app_note("rank %d on %s: %s of experts in memory, %.1f %% of %lld were there, read %s, computed %.2f s; %lld "
                 "messages, %s out, %s back, waited %.2f s for it, %.2f s of that for the wire",
                 k, s.host, app_bytes((double)s.cache_bytes, memory),
                 s.wanted ? 100.0 * (double)s.hits / (double)s.wanted : 0, (long long)s.wanted,
                 app_bytes((double)(s.bytes_read + s.bytes_prefetched), read), (double)s.compute_ns * 1e-9,
                 (long long)s.messages, app_bytes((double)s.bytes_out, out), app_bytes((double)s.bytes_in, in),
                 (double)s.wait_ns * 1e-9, (double)s.wire_ns * 1e-9);
    }
}

/* One kind of number, of every rank. */
static mf_status write_kind(mf__strbuf *b, const char *name, const char *type, const char *help, size_t offset,
                            double unit) {
    cluster_rank_stats s;
    MF__TRY(
        mf__strbuf_printf(b, NULL, "# HELP moeflux_rank_%s %s\n# TYPE moeflux_rank_%s %s\n", name, help, name, type));
    for (int k = 1; cluster_stats_get(k, &s); k++) {
        int64_t value = *(const int64_t *)(const void *)((const char *)&s + offset);
        MF__TRY(mf__strbuf_printf(b, NULL, "moeflux_rank_%s{rank=\"%d\",host=\"%s\"} %.15g\n", name, k, s.host,
                                  (double)value * unit));
    }
    return MF_OK;
}

char *cluster_metrics(void) {
    static const struct {
        const char *name, *type, *help;
        size_t offset;
        double unit;
    } kinds[] = {
        {"memory_bytes", "gauge", "Experts in memory.", offsetof(cluster_rank_stats, cache_bytes), 1},
        {"budget_bytes", "gauge", "Most memory for them.", offsetof(cluster_rank_stats, budget), 1},
        {"experts_wanted_total", "counter", "Experts asked for.", offsetof(cluster_rank_stats, wanted), 1},
        {"experts_hit_total", "counter", "Those that were in memory.", offsetof(cluster_rank_stats, hits), 1},
        {"read_bytes_total", "counter", "Read because wanted.", offsetof(cluster_rank_stats, bytes_read), 1},
        {"prefetched_bytes_total", "counter", "Read ahead.", offsetof(cluster_rank_stats, bytes_prefetched), 1},
        {"stall_seconds_total", "counter", "Waited for its drive.", offsetof(cluster_rank_stats, stall_ns), 1e-9},
        {"compute_seconds_total", "counter", "Computed, waits included.", offsetof(cluster_rank_stats, compute_ns),
         1e-9},
        {"messages_total", "counter", "Messages, both ways.", offsetof(cluster_rank_stats, messages), 1},
        {"sent_bytes_total", "counter", "Sent to it.", offsetof(cluster_rank_stats, bytes_out), 1},
        {"received_bytes_total", "counter", "Received from it.", offsetof(cluster_rank_stats, bytes_in), 1},
        {"wait_seconds_total", "counter", "Rank 0 waited for it.", offsetof(cluster_rank_stats, wait_ns), 1e-9},
        {"wire_seconds_total", "counter", "... while messages were on their way.",
         offsetof(cluster_rank_stats, wire_ns), 1e-9}};
    mf__strbuf b = {0};
    if (cluster_size() == 1) return NULL;
    for (size_t i = 0; i < MF__COUNT(kinds); i++)
        if (write_kind(&b, kinds[i].name, kinds[i].type, kinds[i].help, kinds[i].offset, kinds[i].unit) != MF_OK) break;
    return b.data;
}
