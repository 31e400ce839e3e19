/* test_reply.c runs these, too. */
#ifndef TEST_REPLY_H
#define TEST_REPLY_H

extern const char *reply_golden, *reply_stories; /* folders: templates, the story model */

void test_forms_whatever_the_model_wants(void **state);
void test_members_in_the_schemas_order(void **state);
void test_few_tokens(void **state);
void test_arguments_come_in_pieces(void **state);
void test_harmony_arguments(void **state);

#endif
