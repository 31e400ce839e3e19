/* test_whole.c runs these, too. */
#ifndef TEST_WHOLE_H
#define TEST_WHOLE_H

extern const char *whole_model;

void test_restart(void **state);
void test_slow_disk(void **state);
void test_leaving_while_loading(void **state);
void test_shared_prompt_on_disk(void **state);
void test_foresight(void **state);
void test_fresh(void **state);
void test_session_order(void **state);
void test_load_without_memory(void **state);
void test_load_beside_others(void **state);
void test_never_fits(void **state);
void test_little_memory(void **state);
void test_short_beside_long(void **state);
void test_long_beside_stream(void **state);
void test_waiting_beside_stream(void **state);
void test_many_slow_reads(void **state);
void test_states_beyond_sessions(void **state);

#endif
